-- API tokens: long-lived secrets that a user makes for its programs, exchanged for access tokens.

CREATE TABLE api_tokens (
    id           text PRIMARY KEY,
    account      text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    user_id      text NOT NULL REFERENCES users ON DELETE CASCADE,
    name         text NOT NULL,
    -- SHA-256 of 256 random bits: nothing that could be guessed, so nothing slower is needed
    secret_hash  bytea NOT NULL UNIQUE,
    expires      timestamptz,
    created_time timestamptz NOT NULL
);
CREATE INDEX api_tokens_by_user ON api_tokens (user_id, created_time, id);
