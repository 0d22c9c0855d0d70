-- A user's departures and invitations, and changes of the history visibility, in the stream ordering:
-- their visibility does not follow from the state after them. See _room_events_slot for the topological one.
CREATE INDEX _room_events_exceptions ON synrepl._room_events (room_no, slot, stream_id)
    WHERE (audience & 131072) <> 0;
