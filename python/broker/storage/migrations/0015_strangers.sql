-- What callers without a token put into a project's storage, and name of their own in a program's polls, has bounds of
-- its own: it leaves room for everybody else.

ALTER TABLE storage_usage
    -- of what is counted beside them, the part that was stored without a token
    ADD COLUMN anonymous_values bigint NOT NULL DEFAULT 0,
    ADD COLUMN anonymous_octets bigint NOT NULL DEFAULT 0,
    -- so that addresses are not kept: a caller is known by a hash
    ADD COLUMN salt uuid NOT NULL DEFAULT gen_random_uuid();

-- Who stored a value without a token; NULL for a value that was stored with one.
ALTER TABLE stored_values ADD COLUMN caller bytea;

CREATE TABLE anonymous_storage_usage (
    account     text NOT NULL,
    project_id  text NOT NULL,
    caller      bytea NOT NULL,
    value_count bigint NOT NULL,
    octets      bigint NOT NULL,
    PRIMARY KEY (account, project_id, caller),
    FOREIGN KEY (account, project_id) REFERENCES storage_usage ON DELETE CASCADE
) WITH (fillfactor = 50);

-- Counts values of these callers, each of so many octets, no more. Whoever calls it holds the project's usage.
CREATE FUNCTION free_anonymous(in_account text, in_project text, in_callers bytea[], in_octets integer[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE anonymous_storage_usage AS used
    SET value_count = used.value_count - freed.value_count, octets = used.octets - freed.octets
    FROM (SELECT caller, count(*) AS value_count, sum(octets) AS octets
          FROM unnest(in_callers, in_octets) AS value (caller, octets) GROUP BY caller) AS freed
    WHERE used.account = in_account AND used.project_id = in_project AND used.caller = freed.caller;
    DELETE FROM anonymous_storage_usage
    WHERE account = in_account AND project_id = in_project AND caller = ANY (in_callers) AND value_count = 0;
    UPDATE storage_usage
    SET anonymous_values = anonymous_values - cardinality(in_callers),
        anonymous_octets = anonymous_octets - (SELECT sum(octets) FROM unnest(in_octets) AS value (octets))
    WHERE account = in_account AND project_id = in_project;
END
$$;

DROP FUNCTION store_values(
    text[], text[], text[], text[], integer[], timestamptz[], boolean[], bigint[], bigint[]);
DROP FUNCTION store_value(text, text, text, text, integer, timestamptz, boolean, bigint, bigint);

-- Stores a value in one round trip. `in_caller` is who stores it without a token, and then replaces nothing; it is
-- empty for callers with a token. Answers 'created' or 'replaced', or why not: 'unknown' (project), 'taken' (the id,
-- and the caller may not replace), 'many' (values), 'large' (octets in all), 'shared' (what callers without a token
-- have in all, half of the project's) or 'own' (what this one has, a tenth of that half).
CREATE FUNCTION store_value(
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
BEGIN
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
CREATE FUNCTION store_values(
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
        SELECT * INTO used FROM storage_usage
        WHERE account = part.account AND project_id = part.project FOR UPDATE;
        -- All can be stored, whatever is there already.
        IF FOUND AND part.may_replace_all AND used.value_count + cardinality(part.ids) <= part.most_values
            AND used.octets + part.octets <= part.most_octets
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

-- Deletes a value; false when there is none. Its followers are told nothing, and what they have not been told of it
-- yet is gone with it.
CREATE FUNCTION delete_value(in_account text, in_project text, in_id text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    deleted_octets integer;
    deleted_caller bytea;
BEGIN
    PERFORM FROM storage_usage WHERE account = in_account AND project_id = in_project FOR UPDATE;
    DELETE FROM stored_values
    WHERE account = in_account AND project_id = in_project AND id = in_id AND NOT superseded
    RETURNING octets, caller INTO deleted_octets, deleted_caller;
    IF deleted_octets IS NULL THEN
        RETURN false;
    END IF;
    UPDATE storage_usage SET value_count = value_count - 1, octets = octets - deleted_octets
    WHERE account = in_account AND project_id = in_project;
    IF deleted_caller IS NOT NULL THEN
        PERFORM free_anonymous(in_account, in_project, ARRAY[deleted_caller], ARRAY[deleted_octets]);
    END IF;
    RETURN true;
END
$$;

-- Polls of a context are counted, and those that stand in no event's context.
ALTER TABLE answer_polls ADD COLUMN is_free boolean NOT NULL DEFAULT false;
ALTER TABLE answer_polls DROP CONSTRAINT answer_polls_program_uid_measure_context_key;
ALTER TABLE answer_polls ADD UNIQUE (program_uid, context, measure);
CREATE INDEX answer_polls_free ON answer_polls (program_uid) WHERE is_free;
