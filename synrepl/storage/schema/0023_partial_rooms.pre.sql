-- Rooms that were joined with partial state, and what completes them in the background. A room is partial as long as it
-- has a row in _partial_rooms, and an event as long as it has one in _partial_events.
--
-- Unlike other tables of rooms these have foreign keys. Their rows are few, and an event must never be stored as partial
-- in a room that is complete.

CREATE TABLE synrepl._partial_rooms (
    room_no integer NOT NULL,
    epoch bigint NOT NULL,                -- of the room's row; a room becomes complete once per epoch
    device_lists_stream_id bigint NOT NULL DEFAULT 0,  -- position of `device_lists` at the join
    join_event_id text NOT NULL,          -- by which the first user of this server joined
    joined_via text NOT NULL,             -- the server that answered
    joined_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT _partial_rooms_key PRIMARY KEY (room_no)
);

-- Servers that were in the room before the join, as the answer to it said.
CREATE TABLE synrepl._partial_room_servers (
    room_no integer NOT NULL,
    server_name text NOT NULL,
    CONSTRAINT _partial_room_servers_key PRIMARY KEY (room_no, server_name),
    CONSTRAINT _partial_room_servers_room FOREIGN KEY (room_no)
        REFERENCES synrepl._partial_rooms ON DELETE CASCADE
);

-- Not removed with the room's row: a room with a partial event cannot become complete.
CREATE TABLE synrepl._partial_events (
    room_no integer NOT NULL,
    event_no bigint NOT NULL,
    CONSTRAINT _partial_events_key PRIMARY KEY (event_no),
    CONSTRAINT _partial_events_room FOREIGN KEY (room_no) REFERENCES synrepl._partial_rooms
);
CREATE INDEX _partial_events_by_room ON synrepl._partial_events (room_no);

-- What is judged again when the room's state is known: all events that came since the join, with partial state or
-- with their full state, and outliers that cite any of these. The last five columns are the outcome, which the events get
-- when the room becomes complete.
CREATE TABLE synrepl._resync_events (
    event_no bigint NOT NULL,
    room_no integer NOT NULL,
    is_reported boolean NOT NULL,         -- another server reported the full state before it
    left_out bigint[] NOT NULL,           -- rejected events that are no part of that state, but may be accepted
    full_before bigint,                   -- state group; without an outcome: the reported state before it
    full_after bigint,
    full_flags smallint,                  -- NULL: it was not judged again yet
    full_audience integer,
    full_refusal text,
    CONSTRAINT _resync_events_key PRIMARY KEY (event_no)
);
CREATE INDEX _resync_events_by_room ON synrepl._resync_events (room_no, event_no);

-- The work on each partial room. Any process that persists rooms may claim it. The last job of a room is kept.
CREATE TABLE synrepl._resync_jobs (
    room_no integer NOT NULL,
    epoch bigint NOT NULL,
    phase text NOT NULL DEFAULT 'ids',
    event_no bigint,                      -- in phases `ids` and `events`: the state before this event is fetched
    source text,                          -- the server that reported the IDs of that state
    listed integer NOT NULL DEFAULT 0,    -- events that the IDs name
    missing integer NOT NULL DEFAULT 0,   -- of these, events that were not stored
    stored integer NOT NULL DEFAULT 0,    -- of these, events that are stored by now
    failures integer NOT NULL DEFAULT 0,  -- rounds through the servers without an answer, in a row
    reason text,                          -- why it waits; NULL while nothing is wrong
    next_try timestamptz NOT NULL DEFAULT now(),
    claim bigint NOT NULL DEFAULT 0,      -- raised by each claim: whoever had an earlier one writes nothing
    owner text,                           -- the process that works on it
    leased_until timestamptz,
    began_at timestamptz NOT NULL DEFAULT now(),
    phase_at timestamptz NOT NULL DEFAULT now(),     -- since when it is in this phase
    progress_at timestamptz NOT NULL DEFAULT now(),  -- when it came forward last
    ended_at timestamptz,
    CONSTRAINT _resync_jobs_key PRIMARY KEY (room_no),
    CONSTRAINT _resync_jobs_phase CHECK (
        phase IN ('ids', 'events', 'judge', 'verify', 'swap', 'done', 'abandoned')
    )
) WITH (fillfactor = 70);
CREATE INDEX _resync_jobs_open ON synrepl._resync_jobs (room_no) WHERE ended_at IS NULL;

-- The last outcome of asking each server.
CREATE TABLE synrepl._resync_attempts (
    room_no integer NOT NULL,
    destination text NOT NULL,
    code text NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    attempted_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT _resync_attempts_key PRIMARY KEY (room_no, destination)
);

-- The state before an event and its auth chain, as another server listed them, and the events of both that were fetched
-- and are not stored yet. After a crash of the server they are empty, and are fetched again.
CREATE UNLOGGED TABLE synrepl._listed_events (
    room_no integer NOT NULL,
    event_id text NOT NULL,
    is_state boolean NOT NULL,            -- of the state; otherwise only of its auth chain
    CONSTRAINT _listed_events_key PRIMARY KEY (room_no, event_id)
);
CREATE UNLOGGED TABLE synrepl._fetched_events (
    room_no integer NOT NULL,
    depth bigint NOT NULL,                -- as its server wrote it: mostly, an event is deeper than what it cites
    event_id text NOT NULL,
    type text NOT NULL,
    state_key text,
    membership text,
    raw bytea NOT NULL,
    CONSTRAINT _fetched_events_key PRIMARY KEY (room_no, event_id)
);
CREATE INDEX _fetched_events_order ON synrepl._fetched_events (room_no, depth, event_id);

-- Rooms that are being joined with their whole state, which takes many transactions. What an unfinished join left is
-- removed.
CREATE TABLE synrepl._room_joins (
    room_no integer NOT NULL,
    owner text NOT NULL,                  -- the process that stores it
    leased_until timestamptz NOT NULL,
    CONSTRAINT _room_joins_key PRIMARY KEY (room_no)
);

-- Users of this server whose devices changed while a room was partial, and servers in the room that were not told.
CREATE TABLE synrepl._device_list_pokes (
    destination text NOT NULL,
    user_id text NOT NULL,
    CONSTRAINT _device_list_pokes_key PRIMARY KEY (destination, user_id)
);

-- The fact in `events` with which the room became complete; 0: it was never partial, or still is. For clients that get
-- no partial rooms it is new from there on.
ALTER TABLE synrepl._room_heads ADD COLUMN completed_stream_id bigint NOT NULL DEFAULT 0;
