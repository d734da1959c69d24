-- Answers of the audience: what each poll has counted, so that a counter that starts again counts nobody twice.

-- The secret under which a program's visitors are hashed; without it nobody can tell who answered.
CREATE TABLE answer_keys (
    program_uid bigint PRIMARY KEY REFERENCES programs ON DELETE CASCADE,
    key         bytea NOT NULL CHECK (octet_length(key) = 16)
);

CREATE TABLE answer_polls (
    uid          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    program_uid  bigint NOT NULL REFERENCES programs ON DELETE CASCADE,
    -- the program's, which never changes: results are looked for by account and measure
    account      text NOT NULL,
    measure      text NOT NULL,
    context      text NOT NULL,
    -- into how many parts its answers are divided; fixed, for a visitor must stay in its part
    shards       smallint NOT NULL CHECK (shards > 0),
    created_time timestamptz NOT NULL DEFAULT now(),
    UNIQUE (program_uid, measure, context)
);
CREATE INDEX answer_polls_by_measure ON answer_polls (account, measure, context);

-- The answers as packed records. A row is what one commit had for a shard (level 0), or many rows merged.
CREATE TABLE answer_records (
    poll    bigint NOT NULL REFERENCES answer_polls ON DELETE CASCADE,
    shard   smallint NOT NULL,
    -- ascending in the order of the commits; of merged rows the highest
    number  bigint NOT NULL,
    level   smallint NOT NULL,
    records bytea NOT NULL,
    PRIMARY KEY (poll, shard, number)
);
-- Hashes cannot be compressed.
ALTER TABLE answer_records ALTER COLUMN records SET STORAGE EXTERNAL;

-- What the records of a shard come to, for readers; changes with every commit.
CREATE TABLE answer_tallies (
    poll        bigint NOT NULL REFERENCES answer_polls ON DELETE CASCADE,
    shard       smallint NOT NULL,
    -- answers for each option, from index 0
    totals      bigint[] NOT NULL,
    impressions bigint NOT NULL,
    visitors    bigint NOT NULL,
    sessions    bigint NOT NULL,
    changed     timestamptz NOT NULL,
    PRIMARY KEY (poll, shard)
) WITH (fillfactor = 50);

-- The newest batch of each door that a slot has counted, with its answer: a batch that comes again is not counted.
CREATE TABLE answer_doors (
    slot     text NOT NULL,
    door     text NOT NULL,
    number   bigint NOT NULL,
    outcomes bytea NOT NULL,
    time     timestamptz NOT NULL,
    PRIMARY KEY (slot, door)
);
