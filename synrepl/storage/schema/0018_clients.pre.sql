-- The newest fact of a room in `events` that changes the current state without an event of its own, as when history
-- comes that changes what older states resolve to; 0: none. Every other change has the stream ID of an event.
ALTER TABLE synrepl._room_heads ADD COLUMN state_stream_id bigint NOT NULL DEFAULT 0;

-- Users whose membership was removed from the current state, by the resolution of states and not by an event. A row counts
-- while the user has none in _memberships.
CREATE TABLE synrepl._removed_memberships (
    stream_id bigint NOT NULL,            -- of the fact that removed it
    room_no integer NOT NULL,
    user_id text NOT NULL,
    CONSTRAINT _removed_memberships_key PRIMARY KEY (user_id, room_no)
);

-- Filters that clients stored. They never change.
CREATE TABLE synrepl._client_filters (
    user_id text NOT NULL,
    filter_no integer NOT NULL,
    digest bytea NOT NULL,                -- SHA-256 of the filter
    filter bytea NOT NULL,                -- JSON
    CONSTRAINT _client_filters_key PRIMARY KEY (user_id, filter_no),
    CONSTRAINT _client_filters_digest UNIQUE (user_id, digest)
);
