-- Which process persists the events of which room. Any process may, since each batch holds the
-- room's lock; a room is assigned to one so that one process has its state in memory.

-- The processes that rooms are assigned to. Without a row, it is 'rooms.writers' of the configuration.
CREATE TABLE synrepl._room_writers (
    writer text NOT NULL,
    CONSTRAINT _room_writers_key PRIMARY KEY (writer)
);

-- The process that a room was moved to, which counts as long as rooms are assigned to it at all.
-- NULL: the hash of the room's ID decides.
ALTER TABLE synrepl._rooms ADD COLUMN writer text;
