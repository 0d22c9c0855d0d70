-- Writers that come and go while the system runs.

ALTER TABLE synrepl._writers
    ADD COLUMN draining boolean NOT NULL DEFAULT false,  -- it takes no new IDs
    ADD COLUMN died boolean NOT NULL DEFAULT false,      -- fenced off, and nobody took its name since
    -- Nobody is it any more, and nobody may be. Its facts stay, and so does its position:
    -- a follower that was away must still be told up to where its facts go.
    ADD COLUMN removed boolean NOT NULL DEFAULT false;

-- As before; and who holds the number of a removed writer is told so, and a writer that is
-- being drained gets no IDs. It may still write at those that it has reserved: that is what
-- is waited for. Older processes leave the last parameter out.
DROP FUNCTION synrepl.enter(integer, bigint, boolean);
CREATE FUNCTION synrepl.enter(
    p_number integer, p_epoch bigint, p_notify boolean, p_reserves boolean DEFAULT false
) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    current_epoch bigint;
    recorded bigint;
    in_stream text;
    drained boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(synrepl.lock_class(p_number), 1);
    -- A statement of its own, after the lock: it must see an epoch raised meanwhile. And who
    -- sees a writer that is being drained without this lock has the proof that it takes
    -- nothing more.
    SELECT w.epoch, s.position, w.stream, w.draining
        INTO current_epoch, recorded, in_stream, drained
        FROM synrepl._writers w JOIN synrepl._streams s USING (stream) WHERE w.number = p_number;
    IF current_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'writer % is fenced off', p_number
            USING ERRCODE = 'SY001', DETAIL = coalesce(current_epoch::text, 'none: it was removed');
    END IF;
    IF p_reserves AND drained THEN
        RAISE EXCEPTION 'writer % is drained', p_number USING ERRCODE = 'SY006';
    END IF;
    IF p_notify THEN
        PERFORM pg_notify('synrepl', in_stream);
    END IF;
    RETURN recorded;
END
$$;

CREATE OR REPLACE FUNCTION synrepl.reserve(
    p_number integer, p_epoch bigint, p_notify boolean,
    p_sequence regclass, p_count integer, p_floor bigint
) RETURNS SETOF bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    floor CONSTANT bigint :=
        greatest(p_floor, synrepl.enter(p_number, p_epoch, p_notify, p_reserves => true));
    id bigint;
BEGIN
    FOR i IN 1 .. p_count LOOP
        id := nextval(p_sequence);
        IF abs(id) <= floor THEN
            id := synrepl.catch_up(p_sequence, floor);
        END IF;
        RETURN NEXT id;
    END LOOP;
END
$$;

-- As before; and a removed writer stays removed.
CREATE OR REPLACE FUNCTION synrepl.add_writer(p_stream text, p_writer text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM synrepl._streams WHERE stream = p_stream) THEN
        RAISE EXCEPTION 'there is no stream "%"', p_stream
            USING ERRCODE = 'SY003', HINT = 'declare it and start the master once';
    END IF;
    IF EXISTS (SELECT FROM synrepl._writers
               WHERE stream = p_stream AND writer = p_writer AND removed) THEN
        RAISE EXCEPTION 'writer "%" of stream "%" was removed', p_writer, p_stream
            USING ERRCODE = 'SY007', HINT = '"synrepl writers add" brings it back';
    END IF;
    -- Looked for first, since each failed insert would use up a number.
    IF NOT EXISTS (SELECT FROM synrepl._writers WHERE stream = p_stream AND writer = p_writer) THEN
        INSERT INTO synrepl._writers (stream, writer) VALUES (p_stream, p_writer)
            ON CONFLICT (stream, writer) DO NOTHING;
        PERFORM set_config('synrepl.added_writer', 'yes', true);
    END IF;
END
$$;

-- As before; and there are no removed writers.
CREATE OR REPLACE FUNCTION synrepl.append(p_stream text, p_rows jsonb, p_writer text DEFAULT 'sql')
    RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    w synrepl._writers;
    fact_id bigint;
    floor_token bigint;
    bad_key text;
BEGIN
    SELECT * INTO w FROM synrepl._writers
        WHERE stream = p_stream AND writer = p_writer AND NOT removed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stream "%" has no writer "%"', p_stream, p_writer
            USING ERRCODE = 'SY003',
                  HINT = 'a stream must be declared and the master started once; '
                         'SELECT synrepl.add_writer(stream, writer) in its own transaction adds a writer';
    END IF;
    -- Until it commits nobody sees the writer, nor that it may hold an ID.
    IF current_setting('synrepl.added_writer', true) = 'yes' THEN
        RAISE EXCEPTION 'a writer was added in this transaction, which must be committed first'
            USING ERRCODE = 'SY003', HINT = 'call synrepl.add_writer() in a transaction of its own';
    END IF;
    -- The lock keeps processes from becoming this writer, however old our snapshot is.
    IF w.held OR NOT pg_try_advisory_xact_lock_shared(synrepl.lock_class(w.number), 0) THEN
        RAISE EXCEPTION 'writer "%" of stream "%" belongs to %',
                p_writer, p_stream, coalesce(w.holder, 'a process')
            USING ERRCODE = 'SY004', HINT = 'use another writer name, such as the default';
    END IF;
    -- A removed writer has another number. A snapshot that is older than that cannot see it;
    -- a row lock can, and the database refuses it then.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM FROM synrepl._writers WHERE number = w.number FOR KEY SHARE;
    END IF;
    IF jsonb_typeof(p_rows) IS DISTINCT FROM 'array'
       OR EXISTS (SELECT FROM jsonb_array_elements(p_rows) AS r WHERE jsonb_typeof(r) <> 'object') THEN
        RAISE EXCEPTION 'rows must be a JSON array of objects, one object per row'
            USING ERRCODE = 'SY005';
    END IF;
    SELECT e.key INTO bad_key
        FROM jsonb_array_elements(p_rows) AS r, jsonb_object_keys(r) AS e(key)
        WHERE NOT EXISTS (
            SELECT FROM pg_attribute a
            WHERE a.attrelid = format('synrepl.%I', p_stream)::regclass
              AND a.attnum > 3 AND NOT a.attisdropped AND a.attname = e.key)
        LIMIT 1;
    IF bad_key IS NOT NULL THEN
        RAISE EXCEPTION 'stream "%" has no column "%"', p_stream, bad_key USING ERRCODE = 'SY005';
    END IF;
    EXECUTE format('SELECT greatest(max(stream_id), -min(stream_id)) FROM synrepl.%I', p_stream)
        INTO floor_token;
    SELECT greatest(floor_token, max(position)) INTO floor_token
        FROM synrepl._writers WHERE stream = p_stream;
    SELECT synrepl.reserve(w.number, w.epoch, true,
                           (SELECT sequence FROM synrepl._streams WHERE stream = p_stream)::regclass,
                           1, floor_token)
        INTO fact_id;
    EXECUTE format(
        'INSERT INTO synrepl.%1$I
         SELECT p.* FROM jsonb_array_elements($3) WITH ORDINALITY AS r,
             jsonb_populate_record(NULL::synrepl.%1$I, r.value || jsonb_build_object(
                 ''stream_id'', $1, ''row_no'', r.ordinality - 1, ''writer'', $2)) AS p', p_stream)
        USING fact_id, p_writer, p_rows;
    RETURN fact_id;
END
$$;
