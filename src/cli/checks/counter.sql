-- The token counter beside the server's clock: it follows the microseconds since 1970, and a promotion puts it
-- 72 minutes ahead.
WITH counter AS (
  SELECT c.next, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint AS clock
    FROM fenceguard.token_counter AS c)
SELECT 'error' AS severity, 'fenceguard.token_counter' AS subject,
       pg_catalog.format('only %s tokens are left', 9007199254740992 - next) AS finding,
       'tokens end at 2^53 - 1, beyond which Redis and JSON change numbers silently' AS reason,
       'find out who raised the counter; it must not be lowered while a fence holds a token above it' AS remedy
  FROM counter WHERE next > 9007199254740992 - 1000000000000
UNION ALL
SELECT 'warning', 'fenceguard.token_counter',
       pg_catalog.format('is %s hours ahead of the server''s clock', (next - clock) / 3600000000),
       'until the clock catches up, a copy of the database that is rolled back can hand out numbers again',
       'set the server''s clock right; after a rollback of the data run: SELECT fenceguard.raise_floor();'
  FROM counter WHERE next - clock > 24 * 3600000000 AND next <= 9007199254740992 - 1000000000000
