-- What accounts say about pictures: from which hosts, by which named options, and signed with which keys.

-- Signing keys are written here and shown once, when they are made; the newest is first.
CREATE TABLE image_rules (
    account      text PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    hosts        text[] NOT NULL DEFAULT '{}',
    presets      jsonb NOT NULL DEFAULT '{}',
    signing_keys text[] NOT NULL DEFAULT '{}'
);
