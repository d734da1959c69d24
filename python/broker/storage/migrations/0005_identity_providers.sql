-- Identity providers (OpenID Connect) whose tokens an account takes, and which of their subjects its users are.

CREATE TABLE identity_providers (
    account    text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    issuer     text NOT NULL,
    audiences  text[] NOT NULL,
    jwks_url   text NOT NULL,
    -- name of the claim that `roles` maps, and {claim value: role}
    role_claim text,
    roles      json NOT NULL,
    PRIMARY KEY (account, issuer)
);

-- Written when a subject is first matched by e-mail; from then on the subject counts, whatever its e-mail is.
CREATE TABLE user_identities (
    account text NOT NULL,
    issuer  text NOT NULL,
    subject text NOT NULL,
    user_id text NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (account, issuer, subject),
    FOREIGN KEY (account, issuer) REFERENCES identity_providers ON DELETE CASCADE
);
CREATE INDEX user_identities_by_user ON user_identities (user_id);
CREATE INDEX users_by_email ON users (account, lower(email));

-- Whether the user gave itself the address. Such a one identifies nobody: it could be that of anybody.
ALTER TABLE users ADD COLUMN email_is_claimed boolean NOT NULL DEFAULT false;
