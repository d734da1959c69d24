-- With which keys an account's own server signs visitors, the newest first: a shared secret, or a public key as PEM.
CREATE TABLE visitor_keys (
    account text PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    keys    text[] NOT NULL
);
