-- For how many days an account keeps its events; NULL is for ever.

ALTER TABLE accounts ADD COLUMN keep_events_days integer CHECK (keep_events_days > 0);
