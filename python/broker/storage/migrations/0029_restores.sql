-- A history that was restored from a backup begins an epoch of its own, and owners notice restores.

ALTER TABLE program_heads
    DROP CONSTRAINT program_heads_epoch_reason_check,
    ADD CONSTRAINT program_heads_epoch_reason_check
        CHECK (epoch_reason IN ('created', 'imported', 'erased', 'lost', 'restored'));

-- One row at most. Its number rises with every restore; an owner then compares what it has in memory with the tables.
CREATE TABLE restores (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number   bigint NOT NULL
);
