-- Imported events keep their ids: these are unique in a history, and those of published events everywhere.

-- Histories count from 1. So a publish that comes again still finds its events in any history, and an id that
-- was imported can stand in a history of each account, and in a former one until its rows have gone.
CREATE UNIQUE INDEX events_by_id_in_history
    ON events (id, (CASE WHEN imported THEN history ELSE 0 END));
DROP INDEX events_by_id;
ALTER INDEX events_by_id_in_history RENAME TO events_by_id;

-- Whose events an import that is under way will be; NULL in those that began before this file ran.
ALTER TABLE staged_imports ADD COLUMN account text, ADD COLUMN program_id text;
