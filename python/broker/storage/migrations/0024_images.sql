-- Purges of pictures, which caches on all nodes follow by themselves, and pictures among the statistics.

-- At most one row. Its lock orders purges as they commit, so who has read up to a number has missed none below it. A
-- number is about the time in milliseconds: it rises over restored and exchanged databases too.
CREATE TABLE image_purge_head (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    number  bigint NOT NULL
);

-- What was made before `number` of this source, by the digest of its URL, is not to be shown; '' is all.
CREATE TABLE image_purges (
    account text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    source  text NOT NULL,
    number  bigint NOT NULL,
    time    timestamptz NOT NULL,
    PRIMARY KEY (account, source)
);
CREATE INDEX image_purges_by_number ON image_purges (number);
CREATE INDEX image_purges_by_time ON image_purges (time);

ALTER TABLE statistics
    ADD COLUMN images         bigint NOT NULL DEFAULT 0,
    ADD COLUMN image_hits     bigint NOT NULL DEFAULT 0,
    ADD COLUMN image_fetches  bigint NOT NULL DEFAULT 0,
    ADD COLUMN image_bytes    bigint NOT NULL DEFAULT 0,
    ADD COLUMN image_searches bigint NOT NULL DEFAULT 0,
    ADD COLUMN image_errors   bigint NOT NULL DEFAULT 0;
