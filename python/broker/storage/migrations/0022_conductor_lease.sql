-- Which `broker up` conducts: two of them would end each other's owners, counters and gateways.

-- One row at most. It counts until `ends`, by the clock of this server; the holder renews it before.
CREATE TABLE conductor_lease (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder   text NOT NULL,
    ends     timestamptz NOT NULL
);
