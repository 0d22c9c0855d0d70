-- What Matrix clients of this server do with rooms: transaction IDs, aliases, rooms that they forgot.

-- Events that were sent under a transaction ID, so that a repeated request gets the same event. A row is written in the
-- transaction of its event. Rows are deleted after some days.
CREATE TABLE synrepl._sent_events (
    request bytea NOT NULL,            -- SHA-256 of user, device, endpoint and transaction ID
    event_id text NOT NULL,
    user_id text NOT NULL,
    device_id text NOT NULL,
    txn_id text NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT _sent_events_key PRIMARY KEY (request)
);
CREATE INDEX _sent_events_event ON synrepl._sent_events (event_id);
CREATE INDEX _sent_events_age ON synrepl._sent_events USING brin (sent_at);

-- Names of rooms, such as #room:example.org.
CREATE TABLE synrepl._room_aliases (
    alias text NOT NULL,
    room_id text NOT NULL,
    creator text NOT NULL,
    added_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT _room_aliases_key PRIMARY KEY (alias)
);
CREATE INDEX _room_aliases_room ON synrepl._room_aliases (room_id);

-- Rooms that a user left and does not want to see any more, until the membership event is another one.
CREATE TABLE synrepl._forgotten_rooms (
    user_id text NOT NULL,
    room_no bigint NOT NULL,
    event_no bigint NOT NULL,          -- the membership with which it was forgotten
    CONSTRAINT _forgotten_rooms_key PRIMARY KEY (user_id, room_no)
);
