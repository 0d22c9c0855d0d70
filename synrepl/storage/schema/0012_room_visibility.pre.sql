-- Who may see the events of rooms: see synrepl.storage.rooms.visibility.audience for the bits of an audience.

-- The highest topological ordering among the events before this one that are on the main line or
-- near it, where that is higher than its own; only for the first event of a group on the line. See
-- synrepl.storage.rooms.visibility.event_places.
ALTER TABLE synrepl._room_events ADD COLUMN reach bigint;

-- The last group on the main line that began before the point of a purge. The first event of it, and
-- of those before it, may be gone, though others of the group stay.
ALTER TABLE synrepl._rooms ADD COLUMN purged_group bigint NOT NULL DEFAULT 0;

-- Where in the orderings a position of the main line is: the first event in each of its groups.
CREATE INDEX _room_events_line ON synrepl._room_events (room_no, group_after)
    WHERE (audience & 32768) <> 0;

-- The same by their place in the orderings, in which they ascend, too.
CREATE INDEX _room_events_line_order ON synrepl._room_events (room_no, topological, stream_id)
    WHERE (audience & 32768) <> 0;

-- Events that are beside the main line, by history visibility, in either order.
CREATE INDEX _room_events_beside ON synrepl._room_events
    (room_no, ((audience >> 2) & 3), topological, stream_id)
    WHERE (audience & 83456) = 16384;
CREATE INDEX _room_events_beside_stream ON synrepl._room_events
    (room_no, ((audience >> 2) & 3), stream_id)
    WHERE (audience & 83456) = 16384;

-- Events near the main line, by the memberships (or the history visibility) in which the state
-- after them may differ from the line.
CREATE TABLE synrepl._branch_memberships (
    topological bigint NOT NULL,
    stream_id bigint NOT NULL,
    event_no bigint NOT NULL,
    room_no integer NOT NULL,
    slot integer NOT NULL,
    PRIMARY KEY (room_no, slot, topological, stream_id)
);

-- The events of a key; apart, those whose visibility does not follow from the state after them.
CREATE INDEX _room_events_slot ON synrepl._room_events
    (room_no, slot, ((audience >> 17) & 1), topological)
    WHERE slot IS NOT NULL;

-- The members of a server.
CREATE INDEX _room_keys_server ON synrepl._room_keys
    (room_no, (CASE WHEN strpos(state_key, ':') = 0 THEN ''
                    ELSE substr(state_key, strpos(state_key, ':') + 1) END))
    WHERE type = 'm.room.member';

-- Users whose accounts were erased: others see the redacted form of what they sent.
CREATE TABLE synrepl._erased_users (user_id text PRIMARY KEY);
