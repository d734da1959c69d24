-- Who administered what, and when. Written in the transaction of the change where that is ours.

CREATE TABLE audit (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account     text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    time        timestamptz NOT NULL,
    -- a user's id, without a key to it, since users go; NULL for the operator at the command line
    actor_id    text,
    actor_name  text NOT NULL,
    action      text NOT NULL,
    target_type text NOT NULL,
    target_id   text NOT NULL,
    -- which fields were changed, and to what where that is no secret
    details     json NOT NULL
);
CREATE INDEX audit_by_account ON audit (account, id);
CREATE INDEX audit_by_age ON audit (time);
