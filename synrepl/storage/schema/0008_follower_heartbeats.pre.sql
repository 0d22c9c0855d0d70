-- When a named follower's process last said that it runs. NULL for followers that are no
-- processes, such as a lake between two runs, and for processes of older versions.
ALTER TABLE synrepl._follower_leases ADD COLUMN seen_at timestamptz;
