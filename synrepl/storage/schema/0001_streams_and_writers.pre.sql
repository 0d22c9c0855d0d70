-- The bookkeeping of streams, writers and followers.
--
-- Stream tables (synrepl.orders, …) are made from their declarations, not here.
-- Names of bookkeeping tables begin with '_', which no stream name does.

CREATE SCHEMA IF NOT EXISTS synrepl;

CREATE TABLE synrepl._streams (
    stream text PRIMARY KEY,
    counts_down boolean NOT NULL,
    sequence text NOT NULL,               -- gives out its IDs; two streams may share one
    position bigint NOT NULL DEFAULT 0,   -- linear position on record, as a token
    trimmed bigint NOT NULL DEFAULT 0     -- facts at or below this token are gone
);

CREATE TABLE synrepl._writers (
    number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- part of its lock keys
    stream text NOT NULL REFERENCES synrepl._streams,
    writer text NOT NULL
        CONSTRAINT _writers_name CHECK (writer ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$'),
    epoch bigint NOT NULL DEFAULT 0,      -- raised by whoever takes over or releases the writer
    held boolean NOT NULL DEFAULT false,  -- some process took its session lock and has not given it back
    backend integer,                      -- whose session lock counts as that process being alive
    holder text,                          -- who that process is, for a person
    position bigint NOT NULL DEFAULT 0,   -- on record, as a token
    UNIQUE (stream, writer)
);

CREATE TABLE synrepl._followers (
    follower text NOT NULL,
    stream text NOT NULL,
    writer text NOT NULL,
    position bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (follower, stream, writer)
);

CREATE TABLE synrepl._idempotency_keys (
    stream text NOT NULL,
    key text NOT NULL,
    digest bytea NOT NULL,                -- of the rows, so that a reused key is noticed
    tokens bigint[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, key)
);

CREATE INDEX _idempotency_keys_age ON synrepl._idempotency_keys (created_at);

-- Advisory locks are keyed (lock_class(number), n):
--   n = 0  session lock: held by the process that is the writer, for its life;
--          shared by plain SQL that appends under a name of its own
--   n = 1  shared by every transaction that reserves or writes, until it ends;
--          exclusive for whoever raises the epoch
--   n > 1  one per explicit reservation, held by the writer's session
-- The base keeps clear of other users of two-part advisory locks ('SY' << 16).
CREATE FUNCTION synrepl.lock_class(number integer) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 1398341632 + number $$;

-- Enter a writing transaction: from here to its end nobody can raise the epoch,
-- and everybody can see that this transaction may hold reserved IDs. Returns the
-- stream's linear position on record, below which no new ID may be.
CREATE FUNCTION synrepl.enter(p_number integer, p_epoch bigint, p_notify boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    current_epoch bigint;
    recorded bigint;
    in_stream text;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(synrepl.lock_class(p_number), 1);
    -- A statement of its own, after the lock: it must see an epoch raised meanwhile.
    SELECT w.epoch, s.position, w.stream INTO current_epoch, recorded, in_stream
        FROM synrepl._writers w JOIN synrepl._streams s USING (stream) WHERE w.number = p_number;
    IF current_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'writer % is fenced off', p_number
            USING ERRCODE = 'SY001', DETAIL = current_epoch::text;
    END IF;
    IF p_notify THEN
        PERFORM pg_notify('synrepl', in_stream);
    END IF;
    RETURN recorded;
END
$$;

-- The first ID beyond p_floor of a sequence that was found behind it (a failover,
-- a restored dump). It is used up to there: nextval cannot go back under a
-- concurrent writer, setval can. Only when that would take long is it set, by one
-- transaction at a time: what others take between its two statements cannot
-- bridge the distance.
CREATE FUNCTION synrepl.catch_up(p_sequence regclass, p_floor bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    far CONSTANT bigint := 100000;
    id bigint;
BEGIN
    LOOP
        id := nextval(p_sequence);
        IF abs(id) > p_floor THEN
            RETURN id;
        ELSIF p_floor - abs(id) > far THEN
            PERFORM pg_advisory_xact_lock(synrepl.lock_class(0), p_sequence::integer);
            id := nextval(p_sequence);
            IF p_floor - abs(id) > far THEN
                PERFORM setval(p_sequence, sign(id)::bigint * p_floor);
            END IF;
        END IF;
    END LOOP;
END
$$;

-- Enter as a writer and take IDs beyond p_floor, in this order: who looks at the
-- sequence and then finds no locks has the proof that all IDs given out are settled.
CREATE FUNCTION synrepl.reserve(
    p_number integer, p_epoch bigint, p_notify boolean,
    p_sequence regclass, p_count integer, p_floor bigint
) RETURNS SETOF bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    floor CONSTANT bigint := greatest(p_floor, synrepl.enter(p_number, p_epoch, p_notify));
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

-- For plain SQL: allow a writer to append to a stream by synrepl.append().
-- In a transaction of its own, once; the writer 'sql' of every stream exists already.
CREATE FUNCTION synrepl.add_writer(p_stream text, p_writer text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM synrepl._streams WHERE stream = p_stream) THEN
        RAISE EXCEPTION 'there is no stream "%"', p_stream
            USING ERRCODE = 'SY003', HINT = 'declare it and start the master once';
    END IF;
    -- Looked for first, since each failed insert would use up a number.
    IF NOT EXISTS (SELECT FROM synrepl._writers WHERE stream = p_stream AND writer = p_writer) THEN
        INSERT INTO synrepl._writers (stream, writer) VALUES (p_stream, p_writer)
            ON CONFLICT (stream, writer) DO NOTHING;
        PERFORM set_config('synrepl.added_writer', 'yes', true);
    END IF;
END
$$;

-- For plain SQL: append one fact, with the given rows, inside the caller's
-- transaction, and return its stream ID. Each row is an object of column values.
--
--     SELECT synrepl.append('orders', '[{"order_id": "o1", "total": 5}]');
--
-- Followers hear of it when the transaction commits.
CREATE FUNCTION synrepl.append(p_stream text, p_rows jsonb, p_writer text DEFAULT 'sql')
    RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    w synrepl._writers;
    fact_id bigint;
    floor_token bigint;
    bad_key text;
BEGIN
    SELECT * INTO w FROM synrepl._writers WHERE stream = p_stream AND writer = p_writer;
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
