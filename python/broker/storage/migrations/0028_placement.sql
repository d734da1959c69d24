-- How many program owners there are; NULL until it is first written, which is as long as the setting counts.
-- What is wanted is put into effect when the processes for it run; then the version grows.
CREATE TABLE placement (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version       bigint NOT NULL,
    owners        smallint CHECK (owners > 0),
    wanted_owners smallint CHECK (wanted_owners > 0)
);
INSERT INTO placement (version) VALUES (0);

-- A change of the placement counts up the generations of the owners. `moved_from` and `moved_to` are those of the last
-- change, by which the holder of a slot knows that nobody else has taken it. `placement` is the version that the
-- holder acts on.
ALTER TABLE owner_slots
    ADD COLUMN moved_from bigint,
    ADD COLUMN moved_to bigint,
    ADD COLUMN placement bigint NOT NULL DEFAULT 0;
