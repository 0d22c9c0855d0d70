-- Imports of rooms from other servers' databases: how far each is, and what was found wrong.

CREATE TABLE synrepl._room_import_sources (
    source text PRIMARY KEY,
    events bigint NOT NULL,               -- positions in the source's streams from which on to follow
    backfill bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE synrepl._room_imports (
    source text NOT NULL,
    room_id text NOT NULL,
    topological bigint NOT NULL,          -- the last event that was imported
    stream bigint NOT NULL,
    state_group bigint NOT NULL DEFAULT 0,    -- the last of the groups that are the state of no event
    finished boolean NOT NULL DEFAULT false,
    left_out text,                        -- why it was not imported
    counts jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, room_id)
);

CREATE TABLE synrepl._room_import_findings (
    source text NOT NULL,
    digest bytea NOT NULL,                -- of the finding, so that a repeated batch adds nothing
    room_id text NOT NULL,
    kind text NOT NULL,
    event_id text NOT NULL,
    finding jsonb NOT NULL,
    found_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, digest)
);

CREATE INDEX _room_import_findings_room ON synrepl._room_import_findings (source, room_id);

-- Events that were not imported, or only in their redacted form.
CREATE TABLE synrepl._room_import_quarantine (
    source text NOT NULL,
    event_id text NOT NULL,
    room_id text NOT NULL,
    raw bytea,                            -- as the source stores it; NULL where it has nothing
    reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, event_id)
);
