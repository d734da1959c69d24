-- A gateway tells which of its long-lived tasks end again and again, so that every API replica can tell it.

ALTER TABLE gateways ADD COLUMN failing text[] NOT NULL DEFAULT '{}';
