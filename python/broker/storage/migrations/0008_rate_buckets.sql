-- Token buckets, so that a limit on a rate is one limit, however many processes serve the account.

-- Unlogged: a crash fills the buckets. A row that is missing is a full bucket.
CREATE UNLOGGED TABLE rate_buckets (
    -- which limit, of which account, and of which address where it is an address's
    key     text PRIMARY KEY,
    -- when the bucket is full again, microseconds since 1970
    full_us bigint NOT NULL
) WITH (fillfactor = 50);  -- rows are changed again and again

-- Takes one token out of each bucket, or none at all. `each_us` is how long a bucket takes to gain a token, `bursts`
-- how many it holds. Answers 0, or the microseconds until every bucket has a token.
CREATE FUNCTION take_tokens(in_keys text[], each_us bigint[], bursts bigint[], now_us bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    missing_us bigint;
    wait_us bigint := 0;
BEGIN
    -- Locked in the order given, which callers keep: account before address.
    FOR i IN 1 .. cardinality(in_keys) LOOP
        INSERT INTO rate_buckets AS bucket VALUES (in_keys[i], now_us)
        ON CONFLICT (key) DO UPDATE SET full_us = greatest(bucket.full_us, now_us)
        RETURNING full_us - now_us INTO missing_us;
        wait_us := greatest(wait_us, missing_us - (bursts[i] - 1) * each_us[i]);
    END LOOP;
    IF wait_us = 0 THEN
        UPDATE rate_buckets AS bucket SET full_us = bucket.full_us + taken.each
        FROM unnest(in_keys, each_us) AS taken (key, each) WHERE bucket.key = taken.key;
    END IF;
    RETURN wait_us;
END
$$;
