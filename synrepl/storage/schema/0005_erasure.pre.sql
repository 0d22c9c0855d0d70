-- Whose data is to go from copies of the streams, such as lakes.

CREATE TABLE synrepl._erased_subjects (
    subject text PRIMARY KEY
        -- Long enough for any name, and short enough for an index.
        CONSTRAINT _erased_subjects_length CHECK (octet_length(subject) BETWEEN 1 AND 1000),
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- For plain SQL: have a user ID, or any other text that stands for somebody, erased.
--
--     SELECT synrepl.erase('@alice:example.org');
--
-- The next run on each lake of this database empties the cells that hold it. The streams'
-- own tables are left as they are. Returns whether it is new.
CREATE FUNCTION synrepl.erase(p_subject text) RETURNS boolean
    LANGUAGE sql
    AS $$
    WITH added AS (
        INSERT INTO synrepl._erased_subjects (subject) VALUES (p_subject)
            ON CONFLICT (subject) DO NOTHING RETURNING true
    )
    SELECT EXISTS (SELECT FROM added)
$$;
