-- Who counts as a visitor of an account's polls: the keys with which its own server signs visitors, the newest first
-- (a shared secret, or a public key as PEM), the secret under which the broker hands visitors out, made when it is
-- first needed, and what polls require that say nothing themselves.
CREATE TABLE visitor_rules (
    account  text PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    keys     text[] NOT NULL DEFAULT '{}',
    secret   bytea,
    required text NOT NULL DEFAULT 'any' CHECK (required IN ('any', 'issued', 'signed'))
);
