-- An epoch may begin because the database lost the end of the one before it: no seq may name two events.

ALTER TABLE program_heads
    DROP CONSTRAINT program_heads_epoch_reason_check,
    ADD CONSTRAINT program_heads_epoch_reason_check
        CHECK (epoch_reason IN ('created', 'imported', 'erased', 'lost'));
