-- Incarnations of the server. An asynchronous standby that is promoted may lack commits, so tokens
-- that were announced would be given out again. Nothing is written on a server that was promoted,
-- or that a dump was restored on, before somebody has confirmed it: that moves every stream
-- beyond everything that can have been announced.

CREATE TABLE synrepl._incarnations (
    number integer PRIMARY KEY,
    system_identifier text NOT NULL,      -- '' where the owner of the schema may not read it
    timeline text NOT NULL,               -- changes with each promotion
    server_started_at timestamptz NOT NULL,  -- the run of the server that was compared last
    confirmed_at timestamptz NOT NULL DEFAULT now(),
    confirmed_by text NOT NULL
);

-- What a failover may have lost: facts of a writer above 'kept', and below 'floor'. The row of
-- writer '' is about all writers, also about those that have no row.
CREATE TABLE synrepl._lost_ranges (
    incarnation integer NOT NULL REFERENCES synrepl._incarnations,
    stream text NOT NULL,
    writer text NOT NULL,
    kept bigint NOT NULL,                 -- everything at or below has survived
    floor bigint NOT NULL,                -- tokens go on above it
    announced bigint,                     -- as far as who confirmed it knew; NULL: not known
    PRIMARY KEY (stream, writer, incarnation)
);

-- The handlers that were told of it.
CREATE TABLE synrepl._losses_told (
    follower text NOT NULL,
    handler text NOT NULL,
    stream text NOT NULL,
    writer text NOT NULL,                 -- '' for the linear view
    lost_after bigint NOT NULL,
    lost_upto bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE synrepl._streams
    ADD COLUMN incarnation integer NOT NULL DEFAULT 1,  -- in which its floor was set
    ADD COLUMN floor bigint NOT NULL DEFAULT 0;

-- In which incarnation a position was recorded; its handler was told of the losses up to then.
ALTER TABLE synrepl._handler_positions ADD COLUMN incarnation integer NOT NULL DEFAULT 1;

-- Which server this is, as far as the caller may read it.
CREATE FUNCTION synrepl.server_identity(OUT system_identifier text, OUT timeline text)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    BEGIN
        SELECT s.system_identifier::text INTO system_identifier FROM pg_control_system() s;
    EXCEPTION WHEN insufficient_privilege THEN
        system_identifier := '';
    END;
END
$$;

INSERT INTO synrepl._incarnations
    (number, system_identifier, timeline, server_started_at, confirmed_by)
    SELECT 1, system_identifier, timeline, pg_postmaster_start_time(), 'migration 0009'
    FROM synrepl.server_identity();

-- The number of this server's incarnation. Refuses a server that is not confirmed. A transaction
-- with an old snapshot can only read an older incarnation, which is refused, too.
CREATE FUNCTION synrepl.confirmed_incarnation() RETURNS integer
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    last synrepl._incarnations;
    here record;
BEGIN
    SELECT * INTO last FROM synrepl._incarnations ORDER BY number DESC LIMIT 1;
    -- Reading the system identifier takes longer, and it is the same for as long as the server runs.
    IF last.timeline = left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
       AND last.server_started_at = pg_postmaster_start_time() THEN
        RETURN last.number;
    END IF;
    SELECT * INTO here FROM synrepl.server_identity();
    IF last.timeline = here.timeline AND last.system_identifier = here.system_identifier THEN
        RETURN last.number;
    END IF;
    RAISE EXCEPTION 'the server was promoted or restored (timeline %, system %) and is not confirmed: the '
                    'last one, of timeline % and system %, may have announced facts that are not here',
                    here.timeline, here.system_identifier, last.timeline, last.system_identifier
        USING ERRCODE = 'SY009', DETAIL = last.number::text,
              HINT = 'a running master confirms it; without one, "synrepl schema confirm" does';
END
$$;

-- Confirm the server, once: move every stream beyond everything that can have been announced, and
-- put on record what is proved to have survived. WAL is replayed in the order of commits, so
-- everything at or below a position on record was committed before that record.
CREATE FUNCTION synrepl.confirm(p_by text DEFAULT session_user, p_announced jsonb DEFAULT '{}')
    RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    -- More facts than any standby can lack, and nine million failovers below 2^53.
    margin CONSTANT bigint := 1000000000;
    last synrepl._incarnations;
    here record;
    numbered record;
    of_stream record;
    steps bigint := 1;
    confirmed integer;
    highest bigint;
    in_table bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(synrepl.lock_class(0), 0);
    SELECT * INTO here FROM synrepl.server_identity();
    SELECT * INTO last FROM synrepl._incarnations ORDER BY number DESC LIMIT 1;
    IF last.timeline = here.timeline AND last.system_identifier = here.system_identifier THEN
        UPDATE synrepl._incarnations SET server_started_at = pg_postmaster_start_time()
            WHERE number = last.number AND server_started_at <> pg_postmaster_start_time();
        RETURN last.number;
    END IF;
    -- A confirmation in between may be lost as well: its number and its floor were one step for each
    -- timeline.
    IF last.system_identifier = here.system_identifier THEN
        steps := greatest(1, ('x' || here.timeline)::bit(32)::bigint
                             - ('x' || last.timeline)::bit(32)::bigint);
    END IF;
    confirmed := last.number + steps;
    -- Nobody may enter; only prepared transactions can still be open, and are waited for.
    PERFORM pg_advisory_xact_lock(synrepl.lock_class(w.number), 1)
        FROM (SELECT number FROM synrepl._writers ORDER BY number) w;
    INSERT INTO synrepl._incarnations
        (number, system_identifier, timeline, server_started_at, confirmed_by)
        VALUES (confirmed, here.system_identifier, here.timeline,
                pg_postmaster_start_time(), p_by);
    INSERT INTO synrepl._lost_ranges (incarnation, stream, writer, kept, floor, announced)
        SELECT confirmed, s.stream, n.writer,
               greatest(n.position,
                   (SELECT max(position) FROM synrepl._followers f
                    WHERE f.stream = s.stream AND f.writer IN (n.writer, '')),
                   (SELECT max(position) FROM synrepl._handler_positions h
                    WHERE h.stream = s.stream AND h.writer IN (n.writer, '')
                      AND position IS DISTINCT FROM started_from),  -- which proves nothing
                   s.position, s.trimmed),
               0, (p_announced -> s.stream ->> n.writer)::bigint
        FROM synrepl._streams s CROSS JOIN LATERAL (
            SELECT w.writer, w.position FROM synrepl._writers w WHERE w.stream = s.stream
            UNION ALL SELECT '', 0
        ) n;
    FOR numbered IN SELECT sequence, bool_or(counts_down) AS down FROM synrepl._streams GROUP BY sequence LOOP
        EXECUTE format('SELECT abs(last_value) FROM %s', numbered.sequence::regclass) INTO highest;
        FOR of_stream IN SELECT stream FROM synrepl._streams WHERE sequence = numbered.sequence LOOP
            EXECUTE format('SELECT greatest(max(stream_id), -min(stream_id)) FROM synrepl.%I',
                           of_stream.stream) INTO in_table;
            SELECT greatest(highest, in_table, max(l.kept), max(l.announced)) INTO highest
                FROM synrepl._lost_ranges l
                WHERE l.stream = of_stream.stream AND l.incarnation = confirmed;
            SELECT greatest(highest, max(a.value::bigint)) INTO highest
                FROM jsonb_each_text(coalesce(p_announced -> of_stream.stream, '{}')) a;
        END LOOP;
        highest := highest + margin * steps;
        PERFORM setval(numbered.sequence::regclass, CASE WHEN numbered.down THEN -highest ELSE highest END);
        UPDATE synrepl._lost_ranges l SET floor = highest FROM synrepl._streams s
            WHERE s.sequence = numbered.sequence AND l.stream = s.stream
              AND l.incarnation = confirmed;
        UPDATE synrepl._streams
            SET position = highest, floor = highest, incarnation = confirmed
            WHERE sequence = numbered.sequence;
    END LOOP;
    -- Also those that have not written here: what they have written may be lost. The old server may
    -- have raised epochs further than is known here, and its claims must not be valid here.
    UPDATE synrepl._writers w
        SET position = s.floor, epoch = epoch + 1000000 * steps, held = false, holder = NULL, backend = NULL
        FROM synrepl._streams s WHERE s.stream = w.stream;
    PERFORM pg_notify('synrepl', stream) FROM synrepl._streams;
    RETURN confirmed;
END
$$;

-- As before; and nobody enters on a server that is not confirmed, nor without waiting for the
-- disk: facts of a commit that a crash forgets would have been announced.
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
    is_confirmed boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(synrepl.lock_class(p_number), 1);
    -- A statement of its own, after the lock: it must see an epoch raised meanwhile. And who
    -- sees a writer that is being drained without this lock has the proof that it takes
    -- nothing more.
    SELECT w.epoch, w.stream, w.draining,
           (SELECT max(x.position) FROM synrepl._streams x WHERE x.sequence = s.sequence),
           (SELECT i.timeline = left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
                   AND i.server_started_at = pg_postmaster_start_time()
            FROM synrepl._incarnations i ORDER BY i.number DESC LIMIT 1)
        INTO current_epoch, in_stream, is_draining, recorded, is_confirmed
        FROM synrepl._writers w JOIN synrepl._streams s USING (stream) WHERE w.number = p_number;
    IF is_confirmed IS NOT TRUE THEN
        PERFORM synrepl.confirmed_incarnation();
    END IF;
    IF current_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'writer % is fenced off', p_number
            USING ERRCODE = 'SY001', DETAIL = coalesce(current_epoch::text, 'none: it was removed');
    END IF;
    IF p_reserves AND is_draining THEN
        RAISE EXCEPTION 'writer % is drained', p_number USING ERRCODE = 'SY006';
    END IF;
    PERFORM synrepl.refuse_stale_snapshot(p_number);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF p_notify THEN
        PERFORM pg_notify('synrepl', in_stream);
    END IF;
    RETURN recorded;
END
$$;

-- Functions may be executed by everybody unless that is revoked. Who writes to the bookkeeping
-- by hand keeps what that needs, as after 0006.
DO $$
DECLARE
    writing regrole;
BEGIN
    FOR writing IN
        SELECT r.grantee FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'synrepl._writers'::regclass AND r.privilege_type = 'UPDATE'
          AND r.grantee NOT IN (0, c.relowner)
    LOOP
        EXECUTE format('GRANT SELECT ON synrepl._incarnations, synrepl._lost_ranges TO %s', writing);
        EXECUTE format('GRANT EXECUTE ON FUNCTION synrepl.confirmed_incarnation(), '
                       'synrepl.server_identity() TO %s', writing);
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION synrepl.server_identity(), synrepl.confirmed_incarnation(),
    synrepl.confirm(text, jsonb) FROM PUBLIC;
