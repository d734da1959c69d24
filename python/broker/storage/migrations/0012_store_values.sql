-- Stores the values of a group by a few statements a project instead of four a value.

-- Stores values in the order of the arguments, and answers for each what `store_value` would answer. Everybody
-- locks projects in one order, so that none waits for one that waits for it.
CREATE FUNCTION store_values(
    in_accounts text[], in_projects text[], in_ids text[], in_metadata text[], in_octets integer[],
    in_times timestamptz[], may_replace boolean[], most_values bigint[], most_octets bigint[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes text[] := array_fill('replaced'::text, ARRAY[cardinality(in_ids)]);
    part record;
    used storage_usage;
    created integer[];
    freed bigint;
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
               bool_and(value.may) AS may_replace_all,
               min(value.most_values) AS most_values,
               min(value.most_octets) AS most_octets,
               sum(value.octets) AS octets,
               sum(value.octets) FILTER (WHERE value.is_last) AS kept_octets
        FROM (
            SELECT account, project, id, octets, may, wanted.most_values, wanted.most_octets, n::integer AS place,
                   lag(n) OVER same_id IS NULL AS is_first, lead(n) OVER same_id IS NULL AS is_last
            FROM unnest(in_accounts, in_projects, in_ids, in_octets, may_replace, most_values, most_octets)
                WITH ORDINALITY AS wanted (account, project, id, octets, may, most_values, most_octets, n)
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
                RETURNING id, octets
            )
            SELECT coalesce(array_agg(wanted.first) FILTER (WHERE earlier.id IS NULL), '{}'),
                   coalesce(sum(earlier.octets), 0)
            INTO created, freed
            FROM unnest(part.ids, part.firsts) AS wanted (id, first) LEFT JOIN earlier ON earlier.id = wanted.id;
            INSERT INTO stored_values (account, project_id, id, metadata, octets, superseded, created_time)
            SELECT part.account, part.project, in_ids[n], in_metadata[n]::json, in_octets[n], NOT is_last,
                   in_times[n]
            FROM unnest(part.places, part.are_last) AS wanted (n, is_last) ORDER BY n;
            UPDATE storage_usage
            SET value_count = used.value_count + cardinality(created),
                octets = used.octets - freed + part.kept_octets
            WHERE account = part.account AND project_id = part.project;
            FOREACH place IN ARRAY created LOOP
                outcomes[place] := 'created';
            END LOOP;
        ELSE
            FOREACH place IN ARRAY part.places LOOP
                outcomes[place] := store_value(
                    part.account, part.project, in_ids[place], in_metadata[place], in_octets[place],
                    in_times[place], may_replace[place], most_values[place], most_octets[place]);
            END LOOP;
        END IF;
    END LOOP;
    RETURN outcomes;
END
$$;

-- A foreign key would be checked for every value. What stores a value has locked the project's row in
-- `storage_usage`, which goes with the project, so no value comes after this has looked for them.
ALTER TABLE stored_values DROP CONSTRAINT stored_values_account_project_id_fkey;

CREATE FUNCTION delete_stored_values() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM stored_values WHERE account = OLD.account AND project_id = OLD.project_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER delete_stored_values AFTER DELETE ON storage_usage
FOR EACH ROW EXECUTE FUNCTION delete_stored_values();
