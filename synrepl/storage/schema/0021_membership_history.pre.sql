-- Memberships of users in rooms, where the newest membership event in the stream does not tell them: those that the
-- resolution of states changed without an event of its own, those that outlived an event, which lost such a
-- resolution, and the last ones before the point of a purge.
CREATE TABLE synrepl._membership_history (
    stream_id bigint NOT NULL,            -- of the fact from which on it counts
    room_no integer NOT NULL,
    is_purged boolean NOT NULL,           -- its event was purged, and what was before it is not known
    user_id text NOT NULL,
    membership text,                      -- NULL: none
    CONSTRAINT _membership_history_key PRIMARY KEY (room_no, user_id, stream_id)
);
CREATE INDEX _membership_history_user ON synrepl._membership_history (user_id);

INSERT INTO synrepl._membership_history (stream_id, room_no, is_purged, user_id, membership)
    SELECT stream_id, room_no, false, user_id, NULL FROM synrepl._removed_memberships;
DROP TABLE synrepl._removed_memberships;

-- Bits 9, 10 and 16 of an audience: no client may see the event.
INSERT INTO synrepl._membership_history (stream_id, room_no, is_purged, user_id, membership)
    SELECT greatest(m.stream_id, e.stream_id), m.room_no, false, m.user_id, m.membership
      FROM synrepl._memberships m
      JOIN synrepl._room_keys k ON k.room_no = m.room_no AND k.type = 'm.room.member' AND k.state_key = m.user_id
     CROSS JOIN LATERAL (
           SELECT e.event_no, e.stream_id FROM synrepl._room_events e
            WHERE e.room_no = k.room_no AND e.slot = k.slot AND e.stream_id > 0 AND e.audience & 67072 = 0
            ORDER BY e.stream_id DESC LIMIT 1) e
     WHERE e.event_no <> m.event_no;

-- The highest stream ID among the events that were purged: who has not seen it may have missed others.
ALTER TABLE synrepl._room_heads ADD COLUMN purged_stream_id bigint NOT NULL DEFAULT 0;
