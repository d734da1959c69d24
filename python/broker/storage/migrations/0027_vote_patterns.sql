-- How votes of watched polls came, as counts: nothing here says who voted. `network` is a hash under the program's
-- key, 0 for all networks that have no row of their own.
CREATE TABLE vote_minutes (
    poll   bigint NOT NULL REFERENCES answer_polls ON DELETE CASCADE,
    minute integer NOT NULL,
    votes  bigint NOT NULL,
    in_row bigint NOT NULL,
    PRIMARY KEY (poll, minute)
);
CREATE TABLE vote_networks (
    poll    bigint NOT NULL REFERENCES answer_polls ON DELETE CASCADE,
    network bigint NOT NULL,
    votes   bigint NOT NULL,
    PRIMARY KEY (poll, network)
);
