-- What trimming goes by: who must have acknowledged a fact, how old it is, and
-- how far each writer's facts are gone.

CREATE TABLE synrepl._follower_leases (
    follower text PRIMARY KEY,
    streams text[],                       -- what it follows; NULL for all
    expires_at timestamptz NOT NULL       -- until then nothing is trimmed that it has not acknowledged
);

-- Followers that are known already come back as processes that renew leases.
INSERT INTO synrepl._follower_leases (follower, streams, expires_at)
    SELECT follower, array_agg(DISTINCT stream), now() + interval '1 day'
    FROM synrepl._followers GROUP BY follower;

-- Where a stream was at some times: rows have none of their own.
CREATE TABLE synrepl._stream_marks (
    stream text NOT NULL REFERENCES synrepl._streams,
    token bigint NOT NULL,                -- the linear position on record,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- first seen there at this time
    PRIMARY KEY (stream, token)
);

-- The last trimmed token of each writer: whoever reads one writer's facts has
-- lost nothing when only those of others are gone.
ALTER TABLE synrepl._writers ADD COLUMN trimmed bigint NOT NULL DEFAULT 0;
