-- Histories get numbers of their own, so that replacing or erasing one only changes its program's head.

CREATE SEQUENCE histories;

ALTER TABLE program_heads ADD COLUMN history bigint;
UPDATE program_heads SET history = program_uid;
SELECT setval('histories', coalesce(max(program_uid), 0) + 1, false) FROM program_heads;
ALTER TABLE program_heads
    ALTER COLUMN history SET DEFAULT nextval('histories'),
    ALTER COLUMN history SET NOT NULL,
    ADD UNIQUE (history);

-- No foreign key: an import arrives before it has a program, and what was erased goes bit by bit afterwards.
ALTER TABLE events DROP CONSTRAINT events_program_uid_fkey;
ALTER TABLE events RENAME COLUMN program_uid TO history;
ALTER TABLE event_changes DROP CONSTRAINT event_changes_program_uid_fkey;
ALTER TABLE event_changes RENAME COLUMN program_uid TO history;

-- Ids are unique for ever and everywhere: a publish that comes again finds its events in a former history too.
DROP INDEX events_by_id;
CREATE UNIQUE INDEX events_by_id ON events (id);

-- An import that is under way: its events are in a history that is no program's yet.
DROP TABLE import_rows;
CREATE TABLE staged_imports (
    import_id    text PRIMARY KEY,
    history      bigint NOT NULL DEFAULT nextval('histories'),
    row_count    bigint NOT NULL,
    created_time timestamptz NOT NULL
);

-- Histories that are nobody's any more, until their rows have been deleted.
CREATE TABLE former_histories (
    history   bigint PRIMARY KEY,
    -- NULL for an import that was never adopted
    epoch     text,
    left_time timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION leave_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO former_histories (history, epoch) VALUES (OLD.history, OLD.epoch);
    RETURN NULL;
END
$$;
CREATE TRIGGER history_replaced AFTER UPDATE OF history ON program_heads
    FOR EACH ROW EXECUTE FUNCTION leave_history();
CREATE TRIGGER history_deleted AFTER DELETE ON program_heads
    FOR EACH ROW EXECUTE FUNCTION leave_history();

-- Ends a statement, with all that it has written, unless everything is as its caller assumed.
CREATE FUNCTION require_all(VARIADIC premises boolean[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT true = ALL (premises) THEN
        RAISE EXCEPTION 'not as assumed' USING ERRCODE = 'BR001';
    END IF;
END
$$;
