-- Many rows from tasks of a job that runs elsewhere (Spark): put aside by the tasks,
-- appended in one transaction when the job is committed.
--
-- The rows themselves are in a table for each stream (synrepl._<stream>_staged), made
-- when a job first needs it.

-- One attempt at one task. Attempts that failed, and those of killed jobs, are left here
-- until somebody cleans up.
CREATE TABLE synrepl._staging (
    attempt bigint PRIMARY KEY,           -- drawn by lot, so never met again after a crash
    job text NOT NULL,
    stream text NOT NULL REFERENCES synrepl._streams,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX _staging_job ON synrepl._staging (stream, job);

-- Rows of attempts that fit no stream.
CREATE TABLE synrepl._staged_bad (
    attempt bigint NOT NULL REFERENCES synrepl._staging ON DELETE CASCADE,
    reason text NOT NULL,
    row json NOT NULL
);

CREATE INDEX _staged_bad_attempt ON synrepl._staged_bad (attempt);

-- Rows that jobs were given and that fit no stream. Nobody empties it but its owner.
CREATE TABLE synrepl._quarantine (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream text NOT NULL,
    writer text NOT NULL,
    job text NOT NULL,
    reason text NOT NULL,
    row json NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

-- The last batch of each streaming job. Unlike idempotency keys it is kept for ever: a job
-- that comes back after a year asks about the batch that it did last.
CREATE TABLE synrepl._job_batches (
    stream text NOT NULL REFERENCES synrepl._streams,
    job text NOT NULL,
    batch bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, job)
);

-- Take a writer's place in this transaction, as synrepl.append() does: no process may be that
-- writer, or become it before the transaction ends. Gives what synrepl.reserve() wants.
CREATE FUNCTION synrepl.take_place(
    p_stream text, p_writer text,
    OUT number integer, OUT epoch bigint, OUT sequence text, OUT floor_token bigint
)
    LANGUAGE plpgsql
    AS $$
DECLARE
    w synrepl._writers;
BEGIN
    SELECT * INTO w FROM synrepl._writers x WHERE x.stream = p_stream AND x.writer = p_writer;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stream "%" has no writer "%"', p_stream, p_writer USING ERRCODE = 'SY003';
    ELSIF w.removed THEN
        RAISE EXCEPTION 'writer "%" of stream "%" was removed', p_writer, p_stream
            USING ERRCODE = 'SY007';
    ELSIF w.held OR NOT pg_try_advisory_xact_lock_shared(synrepl.lock_class(w.number), 0) THEN
        RAISE EXCEPTION 'writer "%" of stream "%" belongs to a process', p_writer, p_stream
            USING ERRCODE = 'SY004', DETAIL = coalesce(w.holder, 'a process');
    ELSIF w.draining THEN
        RAISE EXCEPTION 'writer % is drained', w.number USING ERRCODE = 'SY006';
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

-- As before; and no new ID may be below what is on record of streams that are numbered together
-- with this one. Rows that keep their IDs are put in before the sequence is moved behind them.
CREATE OR REPLACE FUNCTION synrepl.enter(
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
    SELECT w.epoch, w.stream, w.draining,
           (SELECT max(x.position) FROM synrepl._streams x WHERE x.sequence = s.sequence)
        INTO current_epoch, in_stream, drained, recorded
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
