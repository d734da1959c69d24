-- Accounts, users, keys, programs with their history, and what owners need to write it safely.

CREATE TABLE accounts (
    name         text PRIMARY KEY,
    -- NULL allows any origin; an empty array allows none
    origins      text[],
    created_time timestamptz NOT NULL
);

CREATE TABLE users (
    id                text PRIMARY KEY,
    account           text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    username          text NOT NULL,
    password_hash     text NOT NULL,
    role              text NOT NULL CHECK (role IN ('admin', 'producer', 'user', 'client')),
    name              text,
    email             text,
    project_ids       text[] NOT NULL DEFAULT '{}',
    -- tokens issued before this moment are refused: it moves when the password changes or the role falls
    tokens_valid_from timestamptz NOT NULL,
    created_time      timestamptz NOT NULL,
    updated_time      timestamptz NOT NULL,
    UNIQUE (account, username)
);

-- Every user whose earlier tokens became invalid, deleted users too; kept for as long as a token can live.
CREATE TABLE revocations (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account      text NOT NULL,
    subject      text NOT NULL,
    valid_from   timestamptz NOT NULL,
    created_time timestamptz NOT NULL
);

CREATE TABLE signing_keys (
    kid          text PRIMARY KEY,
    public_key   bytea NOT NULL,
    private_key  bytea NOT NULL,
    created_time timestamptz NOT NULL,
    -- from this moment the key signs nothing; it verifies until the last token it signed has ended
    retired_time timestamptz
);

-- Failed log-ins in sliding windows, shared by all replicas. `subject` is a keyed hash, never a name in clear.
CREATE TABLE login_failures (
    account text NOT NULL,
    subject bytea NOT NULL,
    time    timestamptz NOT NULL
);
CREATE INDEX login_failures_by_subject ON login_failures (account, subject, time);

CREATE TABLE programs (
    uid             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account         text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    id              text NOT NULL,
    name            text NOT NULL,
    scheduled_start timestamptz,
    scheduled_end   timestamptz,
    project_id      text,
    access          text NOT NULL CHECK (access IN ('public', 'private')),
    metadata        json,
    created_time    timestamptz NOT NULL,
    updated_time    timestamptz NOT NULL,
    UNIQUE (account, id)
);
CREATE INDEX programs_by_project ON programs (account, project_id);
CREATE INDEX programs_by_creation ON programs (account, created_time);

-- Where each program's history stands. Apart from `programs` because it changes with every commit.
CREATE TABLE program_heads (
    program_uid   bigint PRIMARY KEY REFERENCES programs ON DELETE CASCADE,
    epoch         text NOT NULL UNIQUE,
    -- why the epoch began, its first free seq, and how many events its beginning deleted
    epoch_reason  text NOT NULL CHECK (epoch_reason IN ('created', 'imported', 'erased')),
    epoch_base    bigint NOT NULL DEFAULT 0,
    epoch_deleted bigint NOT NULL DEFAULT 0,
    -- the seq of the newest push; 0 when the epoch has none
    seq           bigint NOT NULL DEFAULT 0,
    last_change   timestamptz
) WITH (fillfactor = 50);

-- The events of each program's current epoch. A deleted event stays, hidden, while recovery may need it.
CREATE TABLE events (
    program_uid  bigint NOT NULL REFERENCES programs ON DELETE CASCADE,
    seq          bigint NOT NULL,
    id           uuid NOT NULL,
    created_time timestamptz NOT NULL,
    timestamp    bigint NOT NULL,
    timecode     bigint NOT NULL,
    event        text NOT NULL,
    metadata     json NOT NULL,
    imported     boolean NOT NULL DEFAULT false,
    deleted      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (program_uid, seq)
);
CREATE UNIQUE INDEX events_by_id ON events (program_uid, id);
CREATE INDEX events_by_timecode ON events (program_uid, timecode, seq) WHERE NOT deleted;
CREATE INDEX events_hidden_by_age ON events (created_time) WHERE deleted;

-- The other pushes of the current epoch: changes and deletions of single events, with both states of the event.
CREATE TABLE event_changes (
    program_uid bigint NOT NULL REFERENCES programs ON DELETE CASCADE,
    seq         bigint NOT NULL,
    event_id    uuid NOT NULL,
    event_seq   bigint NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('updated', 'deleted')),
    before      json NOT NULL,
    after       json,
    time        timestamptz NOT NULL,
    PRIMARY KEY (program_uid, seq)
);
CREATE INDEX event_changes_by_event ON event_changes (program_uid, event_seq, seq);
CREATE INDEX event_changes_by_age ON event_changes (time);

-- An import waits here, outside the write-ahead log, until the owner adopts it in one transaction.
CREATE UNLOGGED TABLE import_rows (
    import_id    text NOT NULL,
    seq          bigint NOT NULL,
    id           uuid NOT NULL,
    created_time timestamptz NOT NULL,
    timestamp    bigint NOT NULL,
    timecode     bigint NOT NULL,
    event        text NOT NULL,
    metadata     json NOT NULL,
    PRIMARY KEY (import_id, seq)
);

-- What the `programs` channel tells. Written under a lock per account, so that ids become visible in order.
CREATE TABLE program_changes (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    change  text NOT NULL CHECK (change IN ('created', 'updated', 'deleted', 'live', 'ended')),
    program json NOT NULL,
    time    timestamptz NOT NULL
);
CREATE INDEX program_changes_by_account ON program_changes (account, id);
CREATE INDEX program_changes_by_age ON program_changes (time);

-- Up to which moment `live` and `ended` changes have been written, per account.
CREATE TABLE schedule_marks (
    account text PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    time    timestamptz NOT NULL
);

-- Fencing: an owner may write only while its generation is the newest of its slot.
CREATE TABLE owner_slots (
    slot       text PRIMARY KEY,
    generation bigint NOT NULL
);

CREATE TABLE idempotency_keys (
    account      text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    caller       text NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    status       smallint NOT NULL,
    result       bytea NOT NULL,
    created_time timestamptz NOT NULL,
    PRIMARY KEY (account, caller, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_time);
