-- While a row is here, callers may change nothing. Processes are notified by `broker_maintenance`, and read it at start.
-- A process of a version before this one does not know it, and goes on taking changes.
CREATE TABLE maintenance (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    message       text NOT NULL,
    retry_after_s integer NOT NULL CHECK (retry_after_s > 0),
    started_time  timestamptz NOT NULL DEFAULT now()
);
