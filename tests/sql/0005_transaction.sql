SELECT plan(49);
SELECT fenceguard.reserve_tokens(100) AS t \gset
SELECT set_config('test.t', :'t', false) AS ignored \gset
-- Claims resource with token t + offset and says what is raised.
CREATE FUNCTION app.claim(resource text, plus int, holder text) RETURNS text LANGUAGE sql AS $$
  SELECT replace(app.raised(format('SELECT fenceguard.claim(%L, %s, %L)', resource, current_setting('test.t')::bigint + plus, holder)),
                 left(current_setting('test.t'), 11), '#') $$;
\set h '0123456789abcdef0123456789abcdef'

-- Order of tokens and holders, through the general path (other holders) and the hot path (32 digits, row exists).
SELECT is(app.claim('r/1', 5, 'h'), 'nothing', 'a first claim');
SELECT is(app.claim('r/1', 5, 'h'), 'nothing', 'the same grant again');
SELECT is(app.claim('r/1', 6, :'h'), 'nothing', 'a newer one');
SELECT is(app.claim('r/1', 6, :'h'), 'nothing', 'the same again, hot path');
SELECT is(app.claim('r/1', 7, :'h'), 'nothing', 'a newer one, hot path');
SELECT is(app.raised(format('SELECT fenceguard.claim(''r/1'', %s, ''x'')', :t + 6)),
          format('TF001 stale token: presented %s, current %s, resource r/1 [holder %s]', :t + 6, :t + 7, :'h'), 'an older one: both tokens and the holder');
SELECT is(app.raised(format('SELECT fenceguard.claim(''r/1'', %s, ''fedcba9876543210fedcba9876543210'')', :t + 7)),
          format('TF001 stale token: presented %s, current %s, resource r/1 [holder %s]', :t + 7, :t + 7, :'h'), 'a duplicate token');
SELECT is((SELECT token || holder FROM fenceguard.fence WHERE resource = 'r/1'), :t + 7 || :'h', 'refusals change nothing');
SELECT is((SELECT claimed_at FROM fenceguard.claim('r/1', :t + 7, :'h')), now(), 'started_at is the transaction''s start');

-- Arguments.
SELECT is(app.raised(statement) LIKE '22023 %', true, statement) FROM unnest(ARRAY[
  $$SELECT fenceguard.claim('', 1, 'h')$$, $$SELECT fenceguard.claim(repeat('x', 513), 1, 'h')$$,
  $$SELECT fenceguard.claim(NULL, 1, 'h')$$, $$SELECT fenceguard.claim('r', 0, 'h')$$, $$SELECT fenceguard.claim('r', NULL, 'h')$$,
  $$SELECT fenceguard.claim('r', 9007199254740992, 'h')$$, $$SELECT fenceguard.claim('r', 1, '')$$, $$SELECT fenceguard.claim('r', 1, NULL)$$,
  $$SELECT fenceguard.claim('r', 1, 'h', -1)$$, $$SELECT fenceguard.claim('r', 1, 'h', 1, 0)$$,
  $$SELECT fenceguard.open_guarded(NULL, '{1}', '{h}', NULL, NULL, NULL, 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{r}', '{1,2}', '{h}', NULL, NULL, NULL, 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{r,r}', '{1,1}', '{h,h}', NULL, NULL, NULL, 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{r,NULL}', '{1,1}', '{h,h}', NULL, NULL, NULL, 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{}', '{}', '{}', NULL, NULL, NULL, 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{r}', '{1}', '{h}', 's', NULL, '1', 0, 1)$$,
  $$SELECT fenceguard.open_guarded('{r}', '{1}', '{h}', 's', 'k', NULL, 0, 1)$$]) statement;
SELECT is(app.raised('SELECT fenceguard.claim(''r/never'', 9007199254740991, ''h'')'), '22023 token 9007199254740991 was never issued', 'a token that nobody was given');
SELECT is((SELECT count(*) FROM fenceguard.fence WHERE resource IN ('r', 'r/never')), 0::bigint, 'bad arguments change nothing');
UPDATE fenceguard.token_counter SET next = 9007199254740000;
SELECT is(app.raised('SELECT fenceguard.claim(''r/ahead'', 9007199254739999, ''h'')'), 'nothing', 'a counter that has run ahead of the clock');
UPDATE fenceguard.token_counter SET next = :t + 100;
DELETE FROM fenceguard.fence WHERE resource = 'r/ahead';

-- Timeouts: for this transaction only, and only downwards.
BEGIN;
SELECT fenceguard.claim('r/1', :t + 7, :'h', 1000, 7000) AS ignored \gset
SELECT is(current_setting('idle_in_transaction_session_timeout'), '7s', 'idle bound');
SELECT is(current_setting('lock_timeout'), '0', 'lock_timeout is as before');
COMMIT;
SELECT is(current_setting('idle_in_transaction_session_timeout'), '0', 'gone with the transaction');
SET idle_in_transaction_session_timeout = '3s';
BEGIN;
SELECT fenceguard.claim('r/1', :t + 7, :'h', 1000, 7000) AS ignored \gset
SELECT is(current_setting('idle_in_transaction_session_timeout'), '3s', 'what is tighter stays');
COMMIT;
SET idle_in_transaction_session_timeout = '1h';
BEGIN;
SELECT fenceguard.claim('r/1', :t + 8, 'other', 1000) AS ignored \gset
SELECT is(current_setting('idle_in_transaction_session_timeout'), '30s', 'what is looser is tightened; 30 s unless said');
COMMIT;
RESET idle_in_transaction_session_timeout;

-- Several resources: previous_* in the order of the arguments.
BEGIN;
SELECT xid AS x FROM fenceguard.open_guarded('{r/b}', ARRAY[:t + 1], '{h}', NULL, NULL, NULL, NULL, NULL) \gset
COMMIT;
SELECT is((SELECT previous_xids::text FROM fenceguard.open_guarded('{r/c,r/b,r/B}', ARRAY[:t + 2, :t + 2, :t + 2], '{h,h,h}', NULL, NULL, NULL, 10, 10)),
          '{NULL,' || :'x' || ',NULL}', 'previous claims in the order of the arguments');
SELECT is(app.raised(format($$SELECT fenceguard.open_guarded('{r/c,r/b}', ARRAY[%s, %s], '{h,h}', NULL, NULL, NULL, 10, 10)$$, :t + 3, :t + 1)) LIKE '%resource r/b%', true, 'one stale token refuses all');
SELECT is((SELECT token FROM fenceguard.fence WHERE resource = 'r/c'), :t + 2::bigint, 'and nothing is claimed');
SELECT matches((SELECT database_identity FROM fenceguard.open_guarded('{r/b}', ARRAY[:t + 2], '{h}', NULL, NULL, NULL, 10, 10)), '^\d+/\d+$', 'the database is named');

-- Promotion and floor.
UPDATE fenceguard.server_state SET timeline = '0000007F';
SELECT is(app.claim('r/1', 9, :'h') LIKE 'TF004 %', true, 'another timeline (hot path)');
SELECT is(app.claim('r/new', 9, :'h') LIKE 'TF004 %', true, 'another timeline (first claim)');
UPDATE fenceguard.server_state SET timeline = (SELECT timeline FROM fenceguard.current_server()), floor = :t + 50;
SELECT is(app.raised(format('SELECT fenceguard.claim(''r/1'', %s, %L)', :t + 49, :'h')),
  format('TF001 stale token: presented %s, current %s, resource r/1 [floor: the grant is from before a promotion or restore of the server]', :t + 49, :t + 50), 'below the floor');
SELECT is(app.claim('r/1', 50, :'h'), 'nothing', 'at the floor');
UPDATE fenceguard.server_state SET floor = 0;

-- Idempotency and the close.
BEGIN;
SELECT * FROM fenceguard.open_guarded('{r/1}', ARRAY[:t + 51], ARRAY[:'h'], 's', 'x1', '{"a":1}', NULL, NULL) \gset o_
SELECT fenceguard.close_guarded(:'o_xid', 's', 'x1', :'o_fingerprint', '{"done":1}', :t + 51, NULL) AS ignored \gset
COMMIT;
SELECT is((SELECT o.replayed::text || o.answer || coalesce(o.xid::text, '-') FROM fenceguard.open_guarded('{r/1}', '{1}', '{stale}', 's', 'x1', '{"a":1}', NULL, NULL) o),
          'true{"done":1}-', 'a repeat gets the answer also under a stale grant, and claims nothing');
SELECT is(app.raised(format('SELECT fenceguard.close_guarded(%L, NULL, NULL, NULL, NULL, NULL, NULL)', :'o_xid')), '25000 the guarded transaction has ended', 'a transaction that has ended cannot be closed');
SELECT is((SELECT count(*) FROM fenceguard.open_guarded('{}', '{}', '{}', 's', 'x2', '1', NULL, NULL) WHERE NOT replayed), 1::bigint, 'a key without a resource');
SELECT is(app.raised($$SELECT fenceguard.open_guarded('{r/1}', '{1}', '{h}', 's', 'x1', '{"a":2}', NULL, NULL)$$) LIKE 'TF003 %', true, 'the key comes before the fence');

-- execute_once: one message, one implicit transaction.
CREATE TABLE app.account (id int PRIMARY KEY, balance int);
INSERT INTO app.account VALUES (1, 100);
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE\; SELECT fenceguard.execute_once_open(ARRAY['r/once'], ARRAY[:t]::bigint[], ARRAY['h'], 's', 'once', '{"a":1}', 1000, 1000)\; WITH b AS (UPDATE app.account SET balance = balance - 10 WHERE id = 1 RETURNING *), a AS (SELECT json_agg(b) AS answer FROM b) SELECT answer, fenceguard.execute_once_close('s', 'once', '{"a":1}', answer, 1, NULL) AS identity FROM a \gset once_
SELECT is(:'once_answer'::text, '[{"id":1,"balance":90}]', 'execute_once: the last result is the answer');
SELECT is(app.raised(format($$SELECT fenceguard.execute_once_open('{r/once}', '{%s}', '{h}', 's', 'once', '{"a":1}', 1, 1)$$, :t)),
          'TF007 replayed: key once of scope s was answered before [[{"id":1,"balance":90}]]', 'a repeat raises it, whole, in the DETAIL');
SELECT is(app.raised($$SELECT fenceguard.execute_once_close('s', 'k', '1', '1', 1, NULL)$$), '25000 execute_once_open() has not run in this transaction', 'close without open');

SELECT * FROM finish();
