-- Answers that keep their writer, decisions that no old snapshot can miss, the name of the
-- server that a database belongs to, and rights by grant.

-- The writer of the first append, which a repeated request is answered with. NULL: an older
-- process put it there, and the rows of the stream's table tell.
ALTER TABLE synrepl._idempotency_keys ADD COLUMN writer text;

-- Whose database this is: at most one row, put there by the first master.
CREATE TABLE synrepl._server (
    -- Named so that a stream may be called "server".
    one_row boolean DEFAULT true CHECK (one_row) CONSTRAINT _server_once PRIMARY KEY,
    server_name text NOT NULL,
    named_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE synrepl._writers
    ADD COLUMN drained boolean NOT NULL DEFAULT false,   -- proved: nothing of it is open, nor can be
    ADD COLUMN generation bigint NOT NULL DEFAULT 0,     -- raised by decisions that leave the epoch
    ADD COLUMN added_in xid8;                            -- the transaction that added it
ALTER TABLE synrepl._writers ALTER COLUMN added_in SET DEFAULT pg_current_xact_id();

-- A REPEATABLE READ or SERIALIZABLE transaction reads the rows of its snapshot, however old it
-- is, so it can read that a writer is not fenced, drained or removed when it is by now. But
-- FOR KEY SHARE fails when a key of the row was changed since the snapshot, and only then. So
-- everything that is decided about a writer is part of a key; its position is not.
CREATE UNIQUE INDEX _writers_decided ON synrepl._writers (number, epoch, generation);

-- Whoever may read this table may read the table of every stream, also of those made later.
CREATE TABLE synrepl._every_stream (stream_id bigint, row_no integer, writer text);

-- Refuse a transaction (serialization_failure, so it is run again) whose snapshot is older than
-- the last decision about a writer.
CREATE FUNCTION synrepl.refuse_stale_snapshot(p_number integer) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM FROM synrepl._writers WHERE number = p_number FOR KEY SHARE;
    END IF;
END
$$;

-- As before; and a transaction with an old snapshot is refused.
CREATE OR REPLACE FUNCTION synrepl.enter(
    p_number integer, p_epoch bigint, p_notify boolean, p_reserves boolean DEFAULT false
) RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    current_epoch bigint;
    recorded bigint;
    in_stream text;
    is_draining boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(synrepl.lock_class(p_number), 1);
    -- A statement of its own, after the lock: it must see an epoch raised meanwhile. And who
    -- sees a writer that is being drained without this lock has the proof that it takes
    -- nothing more.
    SELECT w.epoch, w.stream, w.draining,
           (SELECT max(x.position) FROM synrepl._streams x WHERE x.sequence = s.sequence)
        INTO current_epoch, in_stream, is_draining, recorded
        FROM synrepl._writers w JOIN synrepl._streams s USING (stream) WHERE w.number = p_number;
    IF current_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'writer % is fenced off', p_number
            USING ERRCODE = 'SY001', DETAIL = coalesce(current_epoch::text, 'none: it was removed');
    END IF;
    IF p_reserves AND is_draining THEN
        RAISE EXCEPTION 'writer % is drained', p_number USING ERRCODE = 'SY006';
    END IF;
    PERFORM synrepl.refuse_stale_snapshot(p_number);
    IF p_notify THEN
        PERFORM pg_notify('synrepl', in_stream);
    END IF;
    RETURN recorded;
END
$$;

-- The name of the stream that shares most pairs of letters with another name; NULL when no stream
-- shares half of them.
CREATE FUNCTION synrepl.nearest_stream(p_name text) RETURNS text
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
    WITH given AS (
        SELECT DISTINCT substr('^' || left(p_name, 63) || '$', n, 2) AS pair
        FROM generate_series(1, length(left(p_name, 63)) + 1) AS n
    ), known AS (
        SELECT DISTINCT s.stream, substr('^' || s.stream || '$', n, 2) AS pair
        FROM synrepl._streams s, generate_series(1, length(s.stream) + 1) AS n
    ), alike AS (
        SELECT known.stream,
               2.0 * count(given.pair) / (count(*) + (SELECT count(*) FROM given)) AS likeness
        FROM known LEFT JOIN given USING (pair) GROUP BY known.stream
    )
    SELECT stream FROM alike WHERE likeness >= 0.5 ORDER BY likeness DESC, stream LIMIT 1
$$;

-- Refuse the name of a stream that is not in this database.
CREATE FUNCTION synrepl.check_stream(p_stream text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM synrepl._streams WHERE stream = p_stream) THEN
        RAISE EXCEPTION 'there is no stream "%"', p_stream
            USING ERRCODE = 'SY003',
                  HINT = coalesce('did you mean "' || synrepl.nearest_stream(p_stream) || '"? ', '')
                         || 'A new stream is declared in the configuration of the master, and made '
                         'when that starts';
    END IF;
END
$$;

-- For plain SQL: allow a writer to append to a stream by synrepl.append().
-- In a transaction of its own, once; the writer 'sql' of every stream exists already.
CREATE OR REPLACE FUNCTION synrepl.add_writer(p_stream text, p_writer text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    PERFORM synrepl.check_stream(p_stream);
    IF EXISTS (SELECT FROM synrepl._writers
               WHERE stream = p_stream AND writer = p_writer AND removed) THEN
        RAISE EXCEPTION 'writer "%" of stream "%" was removed', p_writer, p_stream
            USING ERRCODE = 'SY007', HINT = '"synrepl writers add" brings it back';
    END IF;
    -- Looked for first, since each failed insert would use up a number.
    IF NOT EXISTS (SELECT FROM synrepl._writers WHERE stream = p_stream AND writer = p_writer) THEN
        INSERT INTO synrepl._writers (stream, writer) VALUES (p_stream, p_writer)
            ON CONFLICT (stream, writer) DO NOTHING;
    END IF;
END
$$;

-- Take a writer's place in this transaction: no process may be that writer, or become it before
-- the transaction ends. Gives what synrepl.reserve() wants.
CREATE OR REPLACE FUNCTION synrepl.take_place(
    p_stream text, p_writer text,
    OUT number integer, OUT epoch bigint, OUT sequence text, OUT floor_token bigint
)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    w synrepl._writers;
BEGIN
    PERFORM synrepl.check_stream(p_stream);
    SELECT * INTO w FROM synrepl._writers x WHERE x.stream = p_stream AND x.writer = p_writer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stream "%" has no writer "%"', p_stream, p_writer
            USING ERRCODE = 'SY003',
                  HINT = 'SELECT synrepl.add_writer(stream, writer) in its own transaction, or '
                         '"synrepl writers add", adds a writer';
    ELSIF w.removed THEN
        RAISE EXCEPTION 'writer "%" of stream "%" was removed', p_writer, p_stream
            USING ERRCODE = 'SY007', HINT = '"synrepl writers add" brings it back';
    -- Who read an old snapshot here takes the lock, and is refused by synrepl.enter().
    ELSIF w.held OR NOT pg_try_advisory_xact_lock_shared(synrepl.lock_class(w.number), 0) THEN
        RAISE EXCEPTION 'writer "%" of stream "%" belongs to a process', p_writer, p_stream
            USING ERRCODE = 'SY004', DETAIL = coalesce(w.holder, 'a process'),
                  HINT = 'use another writer name, such as the default';
    ELSIF w.draining THEN
        RAISE EXCEPTION 'writer "%" of stream "%" is drained', p_writer, p_stream
            USING ERRCODE = 'SY006', HINT = '"synrepl writers add" lets it write again';
    END IF;
    number := w.number;
    epoch := w.epoch;
    SELECT s.sequence INTO sequence FROM synrepl._streams s WHERE s.stream = p_stream;
    EXECUTE format('SELECT greatest(max(stream_id), -min(stream_id)) FROM synrepl.%I', p_stream)
        INTO floor_token;
    SELECT greatest(0, floor_token, max(x.position)) INTO floor_token
        FROM synrepl._writers x WHERE x.stream = p_stream;
END
$$;

-- Refuse a writer's name to a role that it does not stand for. Roles that may change the
-- bookkeeping may be every writer, as the owner of the schema is; any other role 'sql', and the
-- writers that have the name of a role that it is, or is a member of.
CREATE FUNCTION synrepl.check_writer_of_caller(p_writer text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    -- Not the current user: that is the owner, in functions that run as it.
    caller CONSTANT name := CASE current_setting('role')
        WHEN 'none' THEN session_user ELSE current_setting('role') END;
BEGIN
    IF p_writer <> 'sql' AND NOT has_table_privilege(caller, 'synrepl._writers', 'UPDATE')
       AND NOT EXISTS (SELECT FROM pg_roles r
                       WHERE r.rolname = p_writer AND pg_has_role(caller, r.oid, 'MEMBER')) THEN
        RAISE EXCEPTION 'role "%" may not append as writer "%"', caller, p_writer
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'leave the writer out, or use one that has the name of the role';
    END IF;
END
$$;

-- Append one fact to any stream. It runs as the owner of the schema, so whoever may execute it
-- may append to every stream, also to those made later, and needs no other right. Nothing of the
-- caller is evaluated: the types of the columns are Postgres's own, the columns have no defaults,
-- and no name is looked for outside pg_catalog.
CREATE FUNCTION synrepl._append(p_stream text, p_rows jsonb, p_writer text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    place record;
    fact_id bigint;
    bad_key text;
BEGIN
    PERFORM synrepl.check_writer_of_caller(p_writer);
    SELECT * INTO place FROM synrepl.take_place(p_stream, p_writer);
    -- Until it commits nobody sees the writer, nor that it may hold an ID.
    IF (SELECT added_in = pg_current_xact_id() FROM synrepl._writers w WHERE w.number = place.number) THEN
        RAISE EXCEPTION 'a writer was added in this transaction, which must be committed first'
            USING ERRCODE = 'SY003', HINT = 'call synrepl.add_writer() in a transaction of its own';
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
    SELECT synrepl.reserve(place.number, place.epoch, true,
                           place.sequence::regclass, 1, place.floor_token)
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

-- For plain SQL: append one fact, with the given rows, inside the caller's
-- transaction, and return its stream ID. Each row is an object of column values.
--
--     SELECT synrepl.append('orders', '[{"order_id": "o1", "total": 5}]');
--
-- Followers hear of it when the transaction commits. It runs with the caller's own rights, and
-- calls what the caller may execute: synrepl._append(), or the function of this stream alone.
CREATE OR REPLACE FUNCTION synrepl.append(p_stream text, p_rows jsonb, p_writer text DEFAULT 'sql')
    RETURNS bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    function_name CONSTANT text := format('synrepl.%I', '_append_' || coalesce(p_stream, ''));
    fact_id bigint;
BEGIN
    IF has_function_privilege('synrepl._append(text, jsonb, text)', 'EXECUTE') THEN
        RETURN synrepl._append(p_stream, p_rows, p_writer);
    END IF;
    IF has_function_privilege(to_regprocedure(function_name || '(jsonb, text)'), 'EXECUTE') IS NOT TRUE THEN
        RAISE EXCEPTION 'role "%" may not append to stream "%"', current_user, p_stream
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'it may append to: ' || coalesce(
                      (SELECT string_agg(substr(proname, 9), ', ' ORDER BY proname) FROM pg_proc
                       WHERE pronamespace = 'synrepl'::regnamespace AND proname LIKE '\_append\_%'
                         AND has_function_privilege(oid, 'EXECUTE')),
                      'no stream') || '; "synrepl schema grant ROLE --append STREAM" changes that';
    END IF;
    EXECUTE format('SELECT %s($1, $2)', function_name) INTO fact_id USING p_rows, p_writer;
    RETURN fact_id;
END
$$;

-- Give roles their rights on a stream that was just made: make the function by which a role may
-- append to it alone, and let those read it who may read every stream.
CREATE FUNCTION synrepl.share_stream(p_stream text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    function_name CONSTANT text := format('synrepl.%I', '_append_' || p_stream);
    reader text;
BEGIN
    IF to_regprocedure(function_name || '(jsonb, text)') IS NULL THEN
        EXECUTE format(
            'CREATE FUNCTION %s(p_rows jsonb, p_writer text) RETURNS bigint
             LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
             AS %L', function_name, format('SELECT synrepl._append(%L, p_rows, p_writer)', p_stream));
        EXECUTE format('REVOKE ALL ON FUNCTION %s(jsonb, text) FROM PUBLIC', function_name);
    END IF;
    FOR reader IN
        SELECT CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'synrepl._every_stream'::regclass AND r.privilege_type = 'SELECT'
          AND r.grantee <> c.relowner
          AND NOT EXISTS (SELECT FROM pg_class t, aclexplode(t.relacl) h
                          WHERE t.oid = format('synrepl.%I', p_stream)::regclass
                            AND h.privilege_type = 'SELECT' AND h.grantee = r.grantee)
    LOOP
        EXECUTE format('GRANT SELECT ON synrepl.%I TO %s', p_stream, reader);
    END LOOP;
END
$$;

-- Keeps the rows of a stream's table as they were written. Trimming deletes them, when it has put
-- on record how far it goes.
CREATE FUNCTION synrepl.refuse_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT FROM gone WHERE abs(stream_id) > (
                SELECT trimmed FROM synrepl._streams WHERE stream = TG_TABLE_NAME)) THEN
            RETURN NULL;
        END IF;
    END IF;
    RAISE EXCEPTION '% of stream "%" is refused: facts are never changed', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'SY008', HINT = 'append a fact that says what is so instead';
END
$$;

-- Have refuse_change() keep the rows of a stream. Waits for transactions that have written there.
CREATE FUNCTION synrepl.protect_stream(p_stream text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    keeps CONSTANT text := 'FOR EACH STATEMENT EXECUTE FUNCTION synrepl.refuse_change()';
BEGIN
    EXECUTE format('CREATE OR REPLACE TRIGGER _never_changed BEFORE UPDATE OR TRUNCATE ON synrepl.%I %s',
                   p_stream, keeps);
    EXECUTE format('CREATE OR REPLACE TRIGGER _never_deleted AFTER DELETE ON synrepl.%I
                    REFERENCING OLD TABLE AS gone %s', p_stream, keeps);
END
$$;

CREATE OR REPLACE FUNCTION synrepl.erase(p_subject text) RETURNS boolean
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
    WITH added AS (
        INSERT INTO synrepl._erased_subjects (subject) VALUES (p_subject)
            ON CONFLICT (subject) DO NOTHING RETURNING true
    )
    SELECT EXISTS (SELECT FROM added)
$$;

ALTER FUNCTION synrepl.reserve(integer, bigint, boolean, regclass, integer, bigint)
    SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION synrepl.catch_up(regclass, bigint) SET search_path = pg_catalog, pg_temp;

SELECT synrepl.share_stream(stream) FROM synrepl._streams;

-- Functions may be executed by everybody unless that is revoked. Roles that were given the
-- tables to write to, before there were rights to append, keep what they need for it.
DO $$
DECLARE
    writing regrole;
BEGIN
    FOR writing IN
        SELECT r.grantee FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'synrepl._writers'::regclass AND r.privilege_type = 'UPDATE'
          AND r.grantee NOT IN (0, c.relowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA synrepl TO %s', writing);
    END LOOP;
END
$$;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA synrepl FROM PUBLIC;
