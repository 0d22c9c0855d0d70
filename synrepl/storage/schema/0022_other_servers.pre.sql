-- Other servers: their keys, and when those that failed are asked again. Times are milliseconds since 1970 by the clock of
-- the process that writes them, because they are compared with times that servers state.

-- Public keys of servers, with those that they do not use any more: events that were signed with them stay.
CREATE TABLE synrepl._server_keys (
    server_name text NOT NULL,
    key_id text NOT NULL,              -- such as ed25519:a_1
    verify_key bytea NOT NULL,
    valid_until_ms bigint NOT NULL,    -- the end of its validity; of a current key at most seven days after it was fetched
    is_old boolean NOT NULL,           -- for events only, not for requests
    stated_until_ms bigint NOT NULL,   -- of the document that it is from
    CONSTRAINT _server_keys_key PRIMARY KEY (server_name, key_id)
);

-- The newest document of each server with its keys, as it signed it, for servers that ask this one for keys of others.
CREATE TABLE synrepl._server_key_documents (
    server_name text NOT NULL,
    document bytea NOT NULL,           -- JSON
    stated_until_ms bigint NOT NULL,   -- its valid_until_ts
    fetched_ms bigint NOT NULL,
    CONSTRAINT _server_key_documents_key PRIMARY KEY (server_name)
);

-- Public keys of this server. Every process writes its own when it starts.
CREATE TABLE synrepl._own_keys (
    key_id text NOT NULL,
    verify_key text NOT NULL,          -- in unpadded Base64
    added_ms bigint NOT NULL,
    expires_ms bigint,                 -- when it was or will be replaced; NULL: it is in use
    CONSTRAINT _own_keys_key PRIMARY KEY (key_id)
);

-- Servers that have failed. A success deletes the row.
CREATE TABLE synrepl._destinations (
    server_name text NOT NULL,
    failing_since_ms bigint NOT NULL,
    failures integer NOT NULL,         -- in a row
    failed_at_ms bigint NOT NULL,
    retry_at_ms bigint NOT NULL,       -- before, it is not asked
    reason text NOT NULL,
    CONSTRAINT _destinations_key PRIMARY KEY (server_name)
);
CREATE INDEX _destinations_since ON synrepl._destinations (failing_since_ms);
