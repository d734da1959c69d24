-- A conductor that lost its lease for a while must see that another one had it, also when that one is gone.

-- Counts up with each that takes the lease; whoever renews it names the one that it took.
ALTER TABLE conductor_lease ADD COLUMN term bigint NOT NULL DEFAULT 0;
