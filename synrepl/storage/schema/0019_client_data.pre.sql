-- What Matrix clients are told besides the events of rooms: current values, and messages to devices. Users may be of other
-- servers. A row has the stream ID and the writer of the fact that tells of it, written in the same transaction.

-- Account data of users, also tags (type m.tag) and read markers (m.fully_read).
CREATE TABLE synrepl._account_data (
    stream_id bigint NOT NULL,            -- in `account_data`
    user_id text NOT NULL,
    room_id text NOT NULL,                -- '' for data that belongs to no room
    type text NOT NULL,
    writer text NOT NULL,
    content bytea NOT NULL,               -- JSON
    CONSTRAINT _account_data_key PRIMARY KEY (user_id, room_id, type)
) WITH (fillfactor = 90);
CREATE INDEX _account_data_stream ON synrepl._account_data (user_id, stream_id);

-- How far users have read.
CREATE TABLE synrepl._receipts (
    stream_id bigint NOT NULL,            -- in `receipts`
    ts bigint NOT NULL,                   -- milliseconds since 1970
    room_no integer NOT NULL,
    user_id text NOT NULL,
    receipt_type text NOT NULL,
    thread_id text NOT NULL,              -- '' for a receipt that belongs to no thread
    event_id text NOT NULL,
    writer text NOT NULL,
    CONSTRAINT _receipts_key PRIMARY KEY (room_no, user_id, receipt_type, thread_id)
) WITH (fillfactor = 90);
CREATE INDEX _receipts_stream ON synrepl._receipts (room_no, stream_id);
CREATE INDEX _receipts_private ON synrepl._receipts (user_id, stream_id)
    WHERE receipt_type = 'm.read.private';

-- The presence of users that were seen at some time.
CREATE TABLE synrepl._presence (
    stream_id bigint NOT NULL,            -- in `presence`
    last_active_ts bigint NOT NULL,       -- milliseconds since 1970; 0: never
    currently_active boolean NOT NULL,
    user_id text NOT NULL,
    state text NOT NULL,                  -- online, unavailable, offline
    status_msg text,
    writer text NOT NULL,
    CONSTRAINT _presence_key PRIMARY KEY (user_id)
) WITH (fillfactor = 80);
CREATE INDEX _presence_stream ON synrepl._presence (stream_id);
CREATE INDEX _presence_present ON synrepl._presence (stream_id) WHERE state <> 'offline';

-- Devices of users of this server that have synced lately: those that get messages.
CREATE TABLE synrepl._client_devices (
    seen_at timestamptz NOT NULL DEFAULT now(),
    user_id text NOT NULL,
    device_id text NOT NULL,
    CONSTRAINT _client_devices_key PRIMARY KEY (user_id, device_id)
);
CREATE INDEX _client_devices_seen ON synrepl._client_devices (seen_at);

-- Messages to devices that have not been acknowledged.
CREATE TABLE synrepl._to_device (
    stream_id bigint NOT NULL,            -- in `to_device`
    place integer NOT NULL,               -- counts the messages of a fact
    user_id text NOT NULL,
    device_id text NOT NULL,
    writer text NOT NULL,
    message bytea NOT NULL,               -- JSON: type, sender, content
    CONSTRAINT _to_device_key PRIMARY KEY (user_id, device_id, stream_id, place)
);

-- Requests that sent messages to devices, so that a repeated one sends nothing. Rows are deleted after some days.
CREATE TABLE synrepl._to_device_requests (
    request bytea NOT NULL,               -- SHA-256 of what identifies it
    stream_id bigint,                     -- of its fact; NULL: nobody got anything
    writer text,
    sent_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT _to_device_requests_key PRIMARY KEY (request)
);
CREATE INDEX _to_device_requests_age ON synrepl._to_device_requests USING brin (sent_at);
