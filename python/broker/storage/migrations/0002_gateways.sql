-- Gateways find each other, and clients find the gateways: each one writes how it is every few seconds.

-- Unlogged: a row is worth nothing ten seconds after it was written.
CREATE UNLOGGED TABLE gateways (
    id          text PRIMARY KEY,
    -- `{account}` stands for the account's label with its dot, or for nothing
    url         text NOT NULL,
    connections bigint NOT NULL,
    draining    boolean NOT NULL,
    -- counters since its start and gauges now, as the gateway counts them
    figures     json NOT NULL,
    -- by the database's clock, so that nodes need not agree on the time
    seen        timestamptz NOT NULL
);
