-- An event that was purged, and that passed all checks, was followed: it is no forward extremity when it
-- comes back, also where only events follow it that did not pass.
ALTER TABLE synrepl._backward_extremities
    ADD COLUMN was_purged boolean NOT NULL DEFAULT false;  -- the missing event was here before

-- Which command raised `reworked` last: a command whose connection was lost at a COMMIT sees that it was
-- its own transaction.
ALTER TABLE synrepl._rooms ADD COLUMN reworked_by uuid;
