-- A clock that stepped back must not refuse callers for as long as it had been ahead.

-- As in 0008, but a bucket is never more than empty: what lacks more was taken by a clock that was ahead.
CREATE OR REPLACE FUNCTION take_tokens(in_keys text[], each_us bigint[], bursts bigint[], now_us bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    missing_us bigint;
    wait_us bigint := 0;
BEGIN
    FOR i IN 1 .. cardinality(in_keys) LOOP
        INSERT INTO rate_buckets AS bucket VALUES (in_keys[i], now_us)
        ON CONFLICT (key) DO UPDATE
            SET full_us = least(greatest(bucket.full_us, now_us), now_us + bursts[i] * each_us[i])
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
