SELECT plan(30);
SELECT fenceguard.reserve_tokens(100) AS t \gset

-- forget_fences
SELECT claimed_xid FROM fenceguard.claim('f/old', :t + 10, 'h') \g /dev/null
SELECT claimed_xid FROM fenceguard.claim('f/older', :t + 5, 'h') \g /dev/null
SELECT claimed_xid FROM fenceguard.claim('f/young', :t + 1, 'h') \g /dev/null
UPDATE fenceguard.fence SET claimed_at = now() - interval '2 days' WHERE resource LIKE 'f/old%';
SELECT is(fenceguard.forget_fences('1 day', 1), 1::bigint, 'at most batch');
SELECT is(fenceguard.forget_fences('1 day'), 1::bigint, 'the rest of what is old');
SELECT is(fenceguard.forget_fences('1 day'), 0::bigint, 'nothing that is young');
SELECT is((SELECT count(*) FROM fenceguard.fence WHERE resource LIKE 'f/%'), 1::bigint, 'the young one stands');
SELECT is((SELECT forgotten FROM fenceguard.server_state), :t + 10::bigint, 'the highest token that was deleted is remembered');
SELECT is(app.raised(format('SELECT fenceguard.claim(''f/old'', %s, ''h'')', :t + 9)),
  format('TF001 stale token: presented %s, current %s, resource f/old [forgotten: the fence of a grant as new as this one was deleted for its age]', :t + 9, :t + 10),
  'a new row must beat it');
SELECT is(app.raised(format('SELECT fenceguard.claim(''f/old'', %s, ''h'')', :t + 10)) LIKE 'TF001 %', true, 'equal does not beat it');
SELECT is(app.raised(format('SELECT fenceguard.claim(''f/old'', %s, ''h'')', :t + 11)), 'nothing', 'higher does');
SELECT is(app.raised(format('SELECT fenceguard.claim(''f/young'', %s, ''h'')', :t + 2)), 'nothing', 'a row that stands need not');
SELECT is(app.raised('SELECT fenceguard.forget_fences(NULL)') LIKE '22023 %', true, 'an age must be given');
SELECT is(app.raised('SELECT fenceguard.forget_fences(''-1 s'')') LIKE '22023 %', true, 'not in the future');
SELECT is(app.raised('SELECT fenceguard.forget_fences(''1 s'', 0)') LIKE '22023 %', true, 'a batch of none');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT is(app.raised('SELECT fenceguard.forget_fences(''1 s'')') LIKE '25001 %', true, 'READ COMMITTED only');
ROLLBACK;
BEGIN;
SELECT fenceguard.forget_fences('1 day') AS ignored \gset
SELECT is(current_setting('idle_in_transaction_session_timeout'), '5s', 'a forgetting transaction that is left open is ended');
ROLLBACK;

-- resolve: what the fence row says about a transaction
BEGIN;
SELECT * FROM fenceguard.claim('f/r', :t + 20, 'h') \gset first_
COMMIT;
SELECT is(fenceguard.resolve('f/r', :'first_claimed_xid', :'first_claimed_at', NULL, NULL), 'committed', 'a first claim that committed');
BEGIN;
SELECT * FROM fenceguard.claim('f/none', :t + 20, 'h') \gset none_
ROLLBACK;
SELECT is(fenceguard.resolve('f/none', :'none_claimed_xid', :'none_claimed_at', NULL, NULL), 'not_committed',
          'a first claim that did not: no row, and nothing that young was forgotten');
BEGIN;
SELECT * FROM fenceguard.claim('f/r', :t + 21, 'h') \gset second_
ROLLBACK;
SELECT is(:'second_previous_xid'::text, :'first_claimed_xid', 'a claim tells whose it found');
SELECT is(fenceguard.resolve('f/r', :'second_claimed_xid', :'second_claimed_at', :'second_previous_xid', :'second_previous_at'),
          'not_committed', 'the row is as the claim found it');
BEGIN;
SELECT * FROM fenceguard.claim('f/r', :t + 22, 'h') \gset third_
COMMIT;
SELECT is(fenceguard.resolve('f/r', :'first_claimed_xid', :'first_claimed_at', NULL, NULL), 'committed', 'the next claim found it');
SELECT is(fenceguard.resolve('f/r', :'second_claimed_xid', :'second_claimed_at', :'second_previous_xid', :'second_previous_at'),
          'not_committed', 'the next claim found what it had found');
BEGIN;
SELECT * FROM fenceguard.claim('f/r', :t + 23, 'h') \gset fourth_
COMMIT;
SELECT is(fenceguard.resolve('f/r', :'first_claimed_xid', :'first_claimed_at', NULL, NULL), 'unknown', 'two claims later nobody knows');
SELECT is(fenceguard.resolve('f/r', :'fourth_claimed_xid', now(), '1', now()), 'unknown',
          'the transaction''s number alone is no proof: numbers come again');
BEGIN;
SELECT * FROM fenceguard.claim('f/r', :t + 24, 'h') \gset fifth_
SELECT * FROM fenceguard.claim('f/r', :t + 25, 'h') \gset again_
SELECT is(:'again_previous_xid'::text, :'fifth_previous_xid', 'a second claim in one transaction found what the first one found');
SELECT * FROM fenceguard.claim('f/r2', :t + 25, '0123456789abcdef0123456789abcdef') \gset new_
SELECT * FROM fenceguard.claim('f/r2', :t + 25, '0123456789abcdef0123456789abcdef') \gset new_again_
COMMIT;
SELECT is(fenceguard.resolve('f/r2', :'new_again_claimed_xid', :'new_again_claimed_at', NULL, NULL), 'committed', 'also where that was nothing');
-- Forgotten in between: no proof either way.
SELECT fenceguard.forget_fences('0 s') AS ignored \gset
SELECT is(fenceguard.resolve('f/none', :'none_claimed_xid', :'none_claimed_at', NULL, NULL), 'unknown',
          'no row, but rows as young as this were forgotten since');
SELECT is(fenceguard.resolve('f/r2', :'new_claimed_xid', :'new_claimed_at', NULL, NULL), 'unknown', 'a committed one that was forgotten');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT is(app.raised('SELECT fenceguard.resolve(''f/r'', ''1'', now(), NULL, NULL)') LIKE '25001 %', true, 'not on an old snapshot');
ROLLBACK;
SELECT is(app.raised('SELECT fenceguard.resolve(''f/r'', NULL, now(), NULL, NULL)') LIKE '22023 %', true, 'arguments');
SELECT is(app.raised($$INSERT INTO fenceguard.fence VALUES ('f/max', 9223372036854775807, 'h', '1', now())$$) LIKE '23514 %', true,
          'a token beyond 2^53-1 cannot be written');
SELECT is((SELECT reloptions::text FROM pg_class WHERE oid = 'fenceguard.fence'::regclass) || (SELECT count(*) FROM pg_index WHERE indrelid = 'fenceguard.fence'::regclass),
          '{fillfactor=50}1', 'room for updates in place, and no index but the key');
UPDATE fenceguard.server_state SET forgotten = 0;
SELECT * FROM finish();
