-- Tells every process of a revoked API token, also those that hold sessions of users whom they look at no more.

-- Set where one API token was revoked; then `valid_from` says nothing, and the user's other tokens stay good.
ALTER TABLE revocations ADD COLUMN api_token_id text;
