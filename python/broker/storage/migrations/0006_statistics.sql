-- Statistics by minute, hour and day, so that the last year is read from few rows.

-- A row is the account as a whole (program_id '') or one of its programs. Programs may be gone: no key to them.
CREATE TABLE statistics (
    account       text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    span          text NOT NULL CHECK (span IN ('minute', 'hour', 'day')),
    -- the beginning of the span, UTC
    time          timestamptz NOT NULL,
    program_id    text NOT NULL,
    -- the program's project at the time; '' is none
    project_id    text NOT NULL,
    -- highest in the span
    connections   bigint NOT NULL,
    subscribers   bigint NOT NULL,
    -- in the span
    events        bigint NOT NULL,
    deliveries    bigint NOT NULL,
    responses     bigint NOT NULL,
    impressions   bigint NOT NULL,
    PRIMARY KEY (account, span, program_id, time, project_id)
) WITH (fillfactor = 70);  -- the running minute's rows are changed again and again
CREATE INDEX statistics_by_account ON statistics (account, span, time);
CREATE INDEX statistics_by_time ON statistics (span, time);

-- Up to which moment (exclusive) minutes have been condensed to hours, and hours to days.
CREATE TABLE statistics_marks (
    span text PRIMARY KEY CHECK (span IN ('hour', 'day')),
    time timestamptz NOT NULL
);

-- The newest batch of each process that writes, so that one whose COMMIT got lost is not added twice.
CREATE TABLE statistics_writers (
    writer text PRIMARY KEY,
    batch  bigint NOT NULL,
    time   timestamptz NOT NULL
);

-- When producers were heard of. Unlogged: a row is worth nothing some minutes after it was written.
CREATE UNLOGGED TABLE producers_seen (
    account text NOT NULL,
    user_id text NOT NULL,
    seen    timestamptz NOT NULL,
    PRIMARY KEY (account, user_id)
);
