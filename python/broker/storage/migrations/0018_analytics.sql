-- Analytics: the Matomo of each account, which account has which site, and the set-ups that are under way.

-- Tokens are written here and read by the server alone; no command and no request shows them.
CREATE TABLE analytics_platforms (
    account      text PRIMARY KEY REFERENCES accounts ON DELETE CASCADE,
    url          text NOT NULL,
    token        text NOT NULL,
    reader       text NOT NULL,
    reader_token text NOT NULL
);

-- A site belongs to the first account that sets it up, also when two accounts share a Matomo, and also after its
-- project is gone.
CREATE TABLE analytics_sites (
    url     text NOT NULL,
    id_site text NOT NULL,
    account text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    PRIMARY KEY (url, id_site)
);

-- A lease for each set-up, so that one runs at a time; one that dies loses it by time.
CREATE TABLE analytics_setups (
    account    text NOT NULL,
    project_id text NOT NULL,
    holder     text NOT NULL,
    expires    timestamptz NOT NULL,
    PRIMARY KEY (account, project_id),
    FOREIGN KEY (account, project_id) REFERENCES projects ON DELETE CASCADE
);
