-- How far each handler of a named follower is, and the facts that handlers could not take.

CREATE TABLE synrepl._handler_positions (
    follower text NOT NULL,
    handler text NOT NULL,
    stream text NOT NULL,
    writer text NOT NULL,                 -- '' for the linear view
    position bigint NOT NULL,
    started_from bigint,                  -- it was given no facts up to here; NULL: inherited, below
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (follower, handler, stream, writer)
);

-- False for a record from before handlers had positions: the handlers inherit it.
ALTER TABLE synrepl._followers ADD COLUMN by_handler boolean NOT NULL DEFAULT false;

CREATE TABLE synrepl._dead_letters (
    follower text NOT NULL,
    handler text NOT NULL,
    stream text NOT NULL,
    writer text NOT NULL,                 -- '' for the linear view
    token bigint NOT NULL,
    fact_writer text NOT NULL,            -- who wrote it; '' where that is not known
    rows json NOT NULL,                   -- as on the wire
    error text NOT NULL,                  -- the type of the exception
    message text NOT NULL,
    traceback text NOT NULL,
    attempts integer NOT NULL,
    set_aside_at timestamptz NOT NULL DEFAULT now(),
    replay_requested_at timestamptz,      -- the worker hands it to the handler again
    PRIMARY KEY (follower, handler, stream, writer, token)
);

CREATE INDEX _dead_letters_replay ON synrepl._dead_letters (follower)
    WHERE replay_requested_at IS NOT NULL;
