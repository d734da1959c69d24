-- Projects, and what lives and dies with them: stored values and application revisions.

-- Programs and users name projects by id and need none of these rows: they may name one before it is made.
CREATE TABLE projects (
    account       text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    id            text NOT NULL,
    name          text NOT NULL,
    description   text,
    metadata      json NOT NULL,
    -- the last number that was given to a revision as its version
    last_version  bigint NOT NULL DEFAULT 0,
    created_time  timestamptz NOT NULL,
    updated_time  timestamptz NOT NULL,
    PRIMARY KEY (account, id)
);

-- How much a project stores. Its row is locked by everything that stores a value, to the end of the transaction,
-- so `stored_values.number` becomes visible in order within a project.
CREATE TABLE storage_usage (
    account     text NOT NULL,
    project_id  text NOT NULL,
    value_count bigint NOT NULL DEFAULT 0,
    octets      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (account, project_id),
    FOREIGN KEY (account, project_id) REFERENCES projects ON DELETE CASCADE
) WITH (fillfactor = 50);

-- Every value as it was stored: at once the store and what the channel `storage:<project>` is told from. One that
-- has been replaced stays, superseded, until followers have heard of it.
CREATE TABLE stored_values (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account      text NOT NULL,
    project_id   text NOT NULL,
    id           text NOT NULL,
    metadata     json NOT NULL,
    octets       integer NOT NULL,
    superseded   boolean NOT NULL DEFAULT false,
    created_time timestamptz NOT NULL,
    FOREIGN KEY (account, project_id) REFERENCES projects ON DELETE CASCADE
);
CREATE UNIQUE INDEX stored_values_by_id ON stored_values (account, project_id, id) WHERE NOT superseded;
CREATE INDEX stored_values_by_number ON stored_values (account, project_id, number);
CREATE INDEX stored_values_superseded_by_age ON stored_values (created_time) WHERE superseded;

-- Stores a value in one round trip. Answers 'created' or 'replaced', or why not: 'unknown' (project), 'taken' (the
-- id, and the caller may not replace), 'many' (values) or 'large' (octets in all).
CREATE FUNCTION store_value(
    in_account text, in_project text, in_id text, in_metadata text, in_octets integer, in_time timestamptz,
    may_replace boolean, most_values bigint, most_octets bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    used storage_usage;
    earlier integer;
BEGIN
    SELECT * INTO used FROM storage_usage WHERE account = in_account AND project_id = in_project FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    SELECT octets INTO earlier FROM stored_values
    WHERE account = in_account AND project_id = in_project AND id = in_id AND NOT superseded;
    IF earlier IS NOT NULL AND NOT may_replace THEN
        RETURN 'taken';
    END IF;
    IF earlier IS NULL AND used.value_count >= most_values THEN
        RETURN 'many';
    END IF;
    IF used.octets - coalesce(earlier, 0) + in_octets > most_octets THEN
        RETURN 'large';
    END IF;
    IF earlier IS NOT NULL THEN
        UPDATE stored_values SET superseded = true
        WHERE account = in_account AND project_id = in_project AND id = in_id AND NOT superseded;
    END IF;
    INSERT INTO stored_values (account, project_id, id, metadata, octets, created_time)
    VALUES (in_account, in_project, in_id, in_metadata::json, in_octets, in_time);
    UPDATE storage_usage
    SET value_count = value_count + CASE WHEN earlier IS NULL THEN 1 ELSE 0 END,
        octets = used.octets - coalesce(earlier, 0) + in_octets
    WHERE account = in_account AND project_id = in_project;
    RETURN CASE WHEN earlier IS NULL THEN 'created' ELSE 'replaced' END;
END
$$;

CREATE TABLE revisions (
    -- the order in which revisions were made, which is what `latest` means
    uid          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account      text NOT NULL,
    project_id   text NOT NULL,
    id           text NOT NULL,
    title        text,
    description  text,
    version      text NOT NULL,
    status       text NOT NULL CHECK (status IN ('draft', 'published')),
    content      json NOT NULL,
    -- ids of users, which may be gone
    created_by   text NOT NULL,
    updated_by   text NOT NULL,
    created_time timestamptz NOT NULL,
    updated_time timestamptz NOT NULL,
    UNIQUE (account, project_id, id),
    UNIQUE (account, project_id, version),
    FOREIGN KEY (account, project_id) REFERENCES projects ON DELETE CASCADE
);
CREATE INDEX revisions_by_status ON revisions (account, project_id, status, uid);
