-- A leaked signing key must verify nothing from one moment on; it is told apart from one that only signs no more.
ALTER TABLE signing_keys ADD COLUMN revoked_time timestamptz;
