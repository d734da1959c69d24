-- The operator bounds what one account may use; NULL has no bound.

ALTER TABLE accounts
    ADD COLUMN quota_programs bigint CHECK (quota_programs > 0),
    -- events a second
    ADD COLUMN quota_events integer CHECK (quota_events > 0),
    -- octets of stored values
    ADD COLUMN quota_storage bigint CHECK (quota_storage > 0),
    -- images made a minute
    ADD COLUMN quota_images integer CHECK (quota_images > 0);

-- Takes as many tokens out of a bucket, or none; see `take_tokens`. More than it holds need a full one, which then owes
-- the rest. Answers 0, or the microseconds until it can be done.
CREATE FUNCTION take_many_tokens(in_key text, each_us bigint, burst bigint, tokens bigint, now_us bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    missing_us bigint;
    wait_us bigint;
BEGIN
    INSERT INTO rate_buckets AS bucket VALUES (in_key, now_us)
    ON CONFLICT (key) DO UPDATE SET full_us = greatest(bucket.full_us, now_us)
    RETURNING full_us - now_us INTO missing_us;
    wait_us := greatest(0, missing_us - greatest(0, burst - tokens) * each_us);
    IF wait_us = 0 THEN
        UPDATE rate_buckets SET full_us = full_us + tokens * each_us WHERE key = in_key;
    END IF;
    RETURN wait_us;
END
$$;

-- How many more octets the account may store, NULL without a quota. With one, whoever stores has the account for
-- itself until its transaction ends, so that none counts what another is about to store. Before the projects' usage,
-- and of several accounts in the order of their names.
CREATE FUNCTION hold_storage_quota(in_account text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    quota bigint;
BEGIN
    SELECT quota_storage INTO quota FROM accounts WHERE name = in_account;
    IF quota IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT quota_storage INTO quota FROM accounts WHERE name = in_account FOR NO KEY UPDATE;
    RETURN quota - (SELECT coalesce(sum(octets), 0) FROM storage_usage WHERE account = in_account);
END
$$;

-- Stores a value in one round trip. `in_caller` is who stores it without a token, and then replaces nothing; it is
-- empty for callers with a token. Answers 'created' or 'replaced', or why not: 'unknown' (project), 'taken' (the id,
-- and the caller may not replace), 'many' (values), 'large' (octets in all), 'shared' (what callers without a token
-- have in all, half of the project's), 'own' (what this one has, a tenth of that half) or 'quota' (octets of the account).
CREATE OR REPLACE FUNCTION store_value(
    in_account text, in_project text, in_id text, in_metadata text, in_octets integer, in_time timestamptz,
    in_caller text, most_values bigint, most_octets bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    is_anonymous boolean := in_caller <> '';
    hashed bytea;
    used storage_usage;
    own anonymous_storage_usage;
    earlier_octets integer;
    earlier_caller bytea;
    left_octets bigint;
BEGIN
    left_octets := hold_storage_quota(in_account);
    SELECT * INTO used FROM storage_usage WHERE account = in_account AND project_id = in_project FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    SELECT octets, caller INTO earlier_octets, earlier_caller FROM stored_values
    WHERE account = in_account AND project_id = in_project AND id = in_id AND NOT superseded;
    IF earlier_octets IS NOT NULL AND is_anonymous THEN
        RETURN 'taken';
    END IF;
    IF earlier_octets IS NULL AND used.value_count >= most_values THEN
        RETURN 'many';
    END IF;
    IF used.octets - coalesce(earlier_octets, 0) + in_octets > most_octets THEN
        RETURN 'large';
    END IF;
    IF in_octets - coalesce(earlier_octets, 0) > left_octets THEN
        RETURN 'quota';
    END IF;
    IF is_anonymous THEN
        IF used.anonymous_values >= most_values / 2 OR used.anonymous_octets + in_octets > most_octets / 2 THEN
            RETURN 'shared';
        END IF;
        hashed := substring(sha256(convert_to(used.salt || in_caller, 'UTF8')) FOR 16);
        SELECT * INTO own FROM anonymous_storage_usage
        WHERE account = in_account AND project_id = in_project AND caller = hashed;
        IF coalesce(own.value_count, 0) >= greatest(1, most_values / 20)
            OR coalesce(own.octets, 0) + in_octets > most_octets / 20
        THEN
            RETURN 'own';
        END IF;
        INSERT INTO anonymous_storage_usage AS usage VALUES (in_account, in_project, hashed, 1, in_octets)
        ON CONFLICT (account, project_id, caller)
            DO UPDATE SET value_count = usage.value_count + 1, octets = usage.octets + in_octets;
    END IF;
    IF earlier_octets IS NOT NULL THEN
        UPDATE stored_values SET superseded = true
        WHERE account = in_account AND project_id = in_project AND id = in_id AND NOT superseded;
    END IF;
    INSERT INTO stored_values (account, project_id, id, metadata, octets, created_time, caller)
    VALUES (in_account, in_project, in_id, in_metadata::json, in_octets, in_time, hashed);
    UPDATE storage_usage
    SET value_count = value_count + CASE WHEN earlier_octets IS NULL THEN 1 ELSE 0 END,
        octets = used.octets - coalesce(earlier_octets, 0) + in_octets,
        anonymous_values = anonymous_values + CASE WHEN is_anonymous THEN 1 ELSE 0 END,
        anonymous_octets = anonymous_octets + CASE WHEN is_anonymous THEN in_octets ELSE 0 END
    WHERE account = in_account AND project_id = in_project;
    IF earlier_caller IS NOT NULL THEN
        PERFORM free_anonymous(in_account, in_project, ARRAY[earlier_caller], ARRAY[earlier_octets]);
    END IF;
    RETURN CASE WHEN earlier_octets IS NULL THEN 'created' ELSE 'replaced' END;
END
$$;

-- Stores values in the order of the arguments, and answers for each what `store_value` would answer. Everybody
-- locks projects in one order, so that none waits for one that waits for it.
CREATE OR REPLACE FUNCTION store_values(
    in_accounts text[], in_projects text[], in_ids text[], in_metadata text[], in_octets integer[],
    in_times timestamptz[], in_callers text[], most_values bigint[], most_octets bigint[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes text[] := array_fill('replaced'::text, ARRAY[cardinality(in_ids)]);
    part record;
    used storage_usage;
    created integer[];
    freed bigint;
    freed_callers bytea[];
    freed_octets integer[];
    place integer;
    left_octets bigint;
BEGIN
    FOR part IN
        -- A project: the places of its values with whether each is the last of its id, and the first place of
        -- each id.
        SELECT value.account, value.project,
               array_agg(value.place ORDER BY value.place) AS places,
               array_agg(value.is_last ORDER BY value.place) AS are_last,
               array_agg(value.id) FILTER (WHERE value.is_first) AS ids,
               array_agg(value.place) FILTER (WHERE value.is_first) AS firsts,
               bool_and(value.caller = '') AS may_replace_all,
               min(value.most_values) AS most_values,
               min(value.most_octets) AS most_octets,
               sum(value.octets) AS octets,
               sum(value.octets) FILTER (WHERE value.is_last) AS kept_octets
        FROM (
            SELECT account, project, id, octets, caller, wanted.most_values, wanted.most_octets, n::integer AS place,
                   lag(n) OVER same_id IS NULL AS is_first, lead(n) OVER same_id IS NULL AS is_last
            FROM unnest(in_accounts, in_projects, in_ids, in_octets, in_callers, most_values, most_octets)
                WITH ORDINALITY AS wanted (account, project, id, octets, caller, most_values, most_octets, n)
            WINDOW same_id AS (
                PARTITION BY account COLLATE "C", project COLLATE "C", id COLLATE "C" ORDER BY n)
        ) AS value
        GROUP BY value.account, value.project
        ORDER BY value.account COLLATE "C", value.project COLLATE "C"
    LOOP
        left_octets := hold_storage_quota(part.account);
        SELECT * INTO used FROM storage_usage
        WHERE account = part.account AND project_id = part.project FOR UPDATE;
        -- All can be stored, whatever is there already.
        IF FOUND AND part.may_replace_all AND used.value_count + cardinality(part.ids) <= part.most_values
            AND used.octets + part.octets <= part.most_octets
            AND (left_octets IS NULL OR part.octets <= left_octets)
        THEN
            -- Before the other, because no two of an id may be there at a time.
            WITH earlier AS (
                UPDATE stored_values SET superseded = true
                WHERE account = part.account AND project_id = part.project AND id = ANY (part.ids)
                    AND NOT superseded
                RETURNING id, octets, caller
            )
            SELECT coalesce(array_agg(wanted.first) FILTER (WHERE earlier.id IS NULL), '{}'),
                   coalesce(sum(earlier.octets), 0),
                   array_agg(earlier.caller) FILTER (WHERE earlier.caller IS NOT NULL),
                   array_agg(earlier.octets) FILTER (WHERE earlier.caller IS NOT NULL)
            INTO created, freed, freed_callers, freed_octets
            FROM unnest(part.ids, part.firsts) AS wanted (id, first) LEFT JOIN earlier ON earlier.id = wanted.id;
            INSERT INTO stored_values (account, project_id, id, metadata, octets, superseded, created_time)
            SELECT part.account, part.project, in_ids[n], in_metadata[n]::json, in_octets[n], NOT is_last,
                   in_times[n]
            FROM unnest(part.places, part.are_last) AS wanted (n, is_last) ORDER BY n;
            UPDATE storage_usage
            SET value_count = used.value_count + cardinality(created),
                octets = used.octets - freed + part.kept_octets
            WHERE account = part.account AND project_id = part.project;
            IF freed_callers IS NOT NULL THEN
                PERFORM free_anonymous(part.account, part.project, freed_callers, freed_octets);
            END IF;
            FOREACH place IN ARRAY created LOOP
                outcomes[place] := 'created';
            END LOOP;
        ELSE
            FOREACH place IN ARRAY part.places LOOP
                outcomes[place] := store_value(
                    part.account, part.project, in_ids[place], in_metadata[place], in_octets[place],
                    in_times[place], in_callers[place], most_values[place], most_octets[place]);
            END LOOP;
        END IF;
    END LOOP;
    RETURN outcomes;
END
$$;
