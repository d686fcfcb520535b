-- Leases in the database: taken, numbered, renewed, released, by nobody but their holder.
\set ON_ERROR_STOP on
BEGIN;
SELECT plan(60);

CREATE FUNCTION pg_temp.a() RETURNS text LANGUAGE sql AS $$SELECT repeat('a', 32)$$;
CREATE FUNCTION pg_temp.b() RETURNS text LANGUAGE sql AS $$SELECT repeat('b', 32)$$;
CREATE FUNCTION pg_temp.soon() RETURNS bigint LANGUAGE sql AS $$SELECT fenceguard.server_us() + 60000000$$;
CREATE FUNCTION pg_temp.take(resource text, holder text, ttl bigint DEFAULT 60000, waiter bigint DEFAULT NULL) RETURNS text
LANGUAGE sql AS $$SELECT outcome FROM fenceguard.lease_acquire(resource, holder, 'a test', ttl, pg_temp.soon(), waiter)$$;

SELECT is(pg_temp.take('r/1', pg_temp.a()), 'held', 'a free lease is taken');
SELECT is(pg_temp.take('r/1', pg_temp.b()), 'busy', 'and is busy then');
SELECT is(pg_temp.take('r/1', pg_temp.a()), 'busy', 'also for its holder: each grant has a holder of its own');
SELECT ok((SELECT remaining_ms BETWEEN 30000 AND 60000 FROM fenceguard.lease_acquire('r/1', pg_temp.b(), '', 60000, pg_temp.soon())),
          'busy says how long the holder has');
SELECT ok((SELECT now_us BETWEEN fenceguard.server_us() - 60000000 AND fenceguard.server_us() + 1
             FROM fenceguard.lease_acquire('r/1', pg_temp.b(), '', 60000, pg_temp.soon())), 'every answer has the server''s time');
SELECT is(outcome, 'late', 'a request after its time takes nothing')
  FROM fenceguard.lease_acquire('r/2', pg_temp.a(), '', 60000, fenceguard.server_us() - 1);
SELECT is((SELECT count(*) FROM fenceguard.lease_inspect('r/2')), 0::bigint, 'really nothing');

SELECT is((SELECT token FROM fenceguard.lease_inspect('r/1')), NULL::bigint, 'no token yet');
SELECT is(fenceguard.lease_number('r/1', pg_temp.a(), 5), 'numbered', 'the holder''s grant is numbered');
SELECT is((SELECT token FROM fenceguard.lease_inspect('r/1')), 5::bigint, 'and the token stands');
SELECT is(fenceguard.lease_number('r/1', pg_temp.a(), 5), 'overtaken', 'not by the same token again');
SELECT is(fenceguard.lease_number('r/1', pg_temp.a(), 4), 'overtaken', 'nor by a lower one');
SELECT is(fenceguard.lease_number('r/1', pg_temp.a(), 6), 'numbered', 'a higher one is a fresh token');
SELECT is(fenceguard.lease_number('r/1', pg_temp.b(), 7), 'lost', 'nobody else''s');
SELECT is(fenceguard.lease_number('r/9', pg_temp.a(), 7), 'lost', 'nor one that nobody holds');

SELECT is(pg_temp.take('r/3', pg_temp.a()), 'held', 'another lease');
SELECT results_eq($$SELECT * FROM fenceguard.lease_renew(ARRAY['r/3', 'r/1', 'r/1', 'r/9'],
  ARRAY[pg_temp.a(), pg_temp.b(), pg_temp.a(), pg_temp.a()], ARRAY[90000, 90000, 120000, 90000]) ORDER BY 1$$,
  ARRAY[1, 3], 'each holder''s own lease is renewed, nothing else');
SELECT ok((SELECT remaining_ms > 60000 FROM fenceguard.lease_inspect('r/1')), 'it has more time now');
SELECT is_empty($$SELECT * FROM fenceguard.lease_renew(ARRAY['r/1'], ARRAY[pg_temp.b()], ARRAY[90000])$$,
                'nobody renews another''s lease');
SELECT is_empty($$SELECT * FROM fenceguard.lease_renew('{}', '{}', '{}')$$, 'nothing to renew is no error');

SELECT is(pg_temp.take('r/4', pg_temp.a(), 1), 'held', 'a lease of one millisecond');
DO 'BEGIN PERFORM pg_sleep(0.01); END';
SELECT is_empty($$SELECT FROM fenceguard.lease_inspect('r/4')$$, 'runs out');
SELECT is_empty($$SELECT * FROM fenceguard.lease_renew(ARRAY['r/4'], ARRAY[pg_temp.a()], ARRAY[60000])$$,
                'a lease that ran out is not renewed');
SELECT is(fenceguard.lease_number('r/4', pg_temp.a(), 9), 'lost', 'nor numbered');
SELECT is(fenceguard.lease_release('r/4', pg_temp.a()), 'already_lost', 'nor released');
SELECT is(pg_temp.take('r/4', pg_temp.b()), 'held', 'the next one takes it');

SELECT is(pg_temp.take('r/7', pg_temp.a()), 'held', 'a lease');
SELECT is(fenceguard.lease_number('r/7', pg_temp.a(), 5), 'numbered', 'with a token');
UPDATE fenceguard.lease SET since = '2020-01-01', expires_at = '2020-01-02' WHERE resource = 'r/7';
SELECT is_empty($$SELECT FROM fenceguard.lease_inspect('r/7')$$, 'that ran out is nobody''s');
SELECT is_empty($$SELECT FROM fenceguard.live_leases() WHERE resource = 'r/7'$$, 'nor in the list');
SELECT is(outcome, 'held', 'and is a fresh grant for the next one')
  FROM fenceguard.lease_acquire('r/7', pg_temp.b(), 'another test', 60000, pg_temp.soon());
SELECT results_eq($$SELECT holder, token, since_us > fenceguard.server_us() - 60000000, label FROM fenceguard.lease_inspect('r/7')$$,
                  $$SELECT pg_temp.b(), NULL::bigint, true, 'another test'$$, 'with nothing of its predecessor''s');

SELECT is(fenceguard.lease_release('r/1', pg_temp.b()), 'already_lost', 'nobody releases another''s lease');
SELECT is((SELECT holder FROM fenceguard.lease_inspect('r/1')), pg_temp.a(), 'which stands');
SELECT is(pg_temp.take('r/1', pg_temp.b(), 60000, 7), 'busy', 'somebody waits');
SELECT is(fenceguard.lease_release('r/1', pg_temp.a()), 'released', 'the holder does');
SELECT is(fenceguard.lease_release('r/1', pg_temp.a()), 'already_lost', 'once');
SELECT results_eq($$SELECT resource FROM fenceguard.live_leases() WHERE resource LIKE 'r/%'$$, ARRAY['r/3', 'r/4', 'r/7'],
                  'the list has those that are held');

SELECT throws_ok($$SELECT fenceguard.lease_acquire('r/5', 'short', '', 1000, 1)$$, '22023', NULL, 'a holder has 32 characters');
SELECT throws_ok($$SELECT fenceguard.lease_acquire('r/5', pg_temp.a(), '', 0, 1)$$, '22023', NULL, 'a ttl of 0 is refused');
SELECT throws_ok($$SELECT fenceguard.lease_acquire('r/5', pg_temp.a(), '', 86400001, 1)$$, '22023', NULL, 'and more than a day');
SELECT throws_ok($$SELECT fenceguard.lease_renew(ARRAY['a'], '{}', '{}')$$, '22023', NULL, 'arrays of different lengths');
SELECT throws_ok($$SELECT fenceguard.lease_number('r/5', pg_temp.a(), 0)$$, '22023', NULL, 'a token is 1 at least');
SELECT throws_ok($$SELECT fenceguard.forget_leases('-1 s')$$, '22023', NULL, 'a negative age');

SELECT is(fenceguard.forget_leases('1 hour'), 0::bigint, 'nothing is old enough to be forgotten');
SELECT is(fenceguard.forget_leases('0'), 1::bigint, 'free rows are forgotten, held ones are not');
SELECT is(pg_temp.take('r/8', pg_temp.a()) || ' ' || pg_temp.take('r/9', pg_temp.a()), 'held held', 'two that ran out');
UPDATE fenceguard.lease SET expires_at = '2020-01-02' WHERE resource IN ('r/8', 'r/9');
SELECT is(fenceguard.forget_leases('1 hour', 1) || ' ' || fenceguard.forget_leases('1 hour', 5), '1 1', 'are forgotten, at most a batch');

-- The line of those who wait for a notification.
CREATE FUNCTION pg_temp.line(resource text) RETURNS text LANGUAGE sql AS
  $$SELECT l.waiters::text || ' ' || cardinality(l.waits_until) FROM fenceguard.lease l WHERE l.resource = line.resource$$;
SELECT is(pg_temp.take('r/6', pg_temp.a()), 'held', 'a lease');
SELECT is(pg_temp.line('r/6'), '{} 0', 'for which nobody waits');
SELECT is((SELECT string_agg(pg_temp.take('r/6', pg_temp.b(), 60000, w), ' ' ORDER BY w) FROM unnest(ARRAY[11, 12, 13, 14, NULL]) AS w),
          'busy busy busy busy busy', 'five ask for it, one without waiting');
SELECT is(pg_temp.line('r/6'), '{11,12,13,14} 4', 'four wait, in the order of asking');
SELECT is(pg_temp.take('r/6', pg_temp.b(), 60000, 11), 'busy', 'one asks again');
SELECT is(pg_temp.line('r/6'), '{11,12,13,14} 4', 'and keeps its place');
UPDATE fenceguard.lease SET waits_until[1] = clock_timestamp() WHERE resource = 'r/6';  -- 11 has gone
SELECT is(fenceguard.lease_release('r/6', pg_temp.a()), 'released', 'the lease is released');
SELECT is(pg_temp.line('r/6'), '{14} 1', 'two who are there were called, past one who has gone');
SELECT is(pg_temp.take('r/6', pg_temp.a()), 'held', 'it is taken again');
SELECT is(pg_temp.line('r/6'), '{14} 1', 'and the line stands');
SELECT is((SELECT string_agg(DISTINCT pg_temp.take('r/6', pg_temp.b(), 60000, w), ' ') FROM generate_series(100, 300) AS w), 'busy',
          'many wait');
SELECT is((SELECT cardinality(waiters) FROM fenceguard.lease WHERE resource = 'r/6'), 100, 'a hundred are called, the others poll');
SELECT finish();
ROLLBACK;
