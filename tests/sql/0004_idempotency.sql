SELECT plan(30);
SELECT is(fenceguard.fingerprint('{"b": [1, 2],  "a":"x"}'), fenceguard.fingerprint('{"a":"x","b":[1,2]}'), 'the spelling of a request does not matter');
SELECT isnt(fenceguard.fingerprint('{"a":1}'), fenceguard.fingerprint('{"a":2}'), 'its content does');
SELECT is(octet_length(fenceguard.fingerprint('null')), 32, 'SHA-256');

BEGIN;
SELECT * FROM fenceguard.replay('s', 'k1', '{"a":1}') \gset r_
SELECT is(:'r_replayed'::text, 'f', 'a new key is not replayed');
SELECT fenceguard.store_answer('s', 'k1', '{"a":1}', '{"ok" :  true}', 7, '1 hour') AS ignored \gset
COMMIT;
SELECT is((SELECT r.replayed::text || r.answer::text FROM fenceguard.replay('s', 'k1', '{"a": 1}') r), 'true{"ok" :  true}', 'a repeat gets the answer byte for byte');
SELECT is((SELECT replayed FROM fenceguard.replay('other', 'k1', '{"a": 2}')), false, 'scopes are apart');
SELECT is(app.raised($$SELECT fenceguard.replay('s', 'k1', '{"a": 2}')$$), 'TF003 idempotency key reused: key k1 of scope s was stored for another request', 'another request');
SELECT is(app.raised($$SELECT fenceguard.store_answer('s', 'k1', '{"a":1}', '1')$$) LIKE '23505 %', true, 'a key is stored once');
SELECT is((SELECT expires_at - created_at FROM fenceguard.idempotency WHERE key = 'k1'), interval '1 hour', 'retention');
UPDATE fenceguard.idempotency SET expires_at = now() - interval '1 s' WHERE key = 'k1';
SELECT is((SELECT replayed FROM fenceguard.replay('s', 'k1', '{"a": 1}')), true, 'a key past its time is honoured while its row stands');

SELECT is(app.raised($$SELECT fenceguard.replay(NULL, 'k', '1')$$) LIKE '22023 %', true, 'scope NULL');
SELECT is(app.raised($$SELECT fenceguard.replay('s', NULL, '1')$$) LIKE '22023 %', true, 'key NULL');
SELECT is(app.raised($$SELECT fenceguard.replay('s', '', '1')$$) LIKE '22023 %', true, 'key empty');
SELECT is(app.raised($$SELECT fenceguard.replay('s', 'k', NULL)$$) LIKE '22023 %', true, 'request NULL');
SELECT is(app.raised($$SELECT fenceguard.replay(repeat('s', 256), 'k', '1')$$) LIKE '22023 %', true, 'scope too long');
SELECT is(app.raised($$SELECT fenceguard.replay('s', repeat('k', 513), '1')$$) LIKE '22023 %', true, 'key too long');
SELECT is(app.raised($$SELECT fenceguard.store_answer('s', 'k', '1', '1', 0)$$) LIKE '22023 %', true, 'token out of range');
SELECT is(app.raised($$SELECT fenceguard.store_answer('s', 'k', '1', '1', 1, '-1 s')$$) LIKE '22023 %', true, 'retention negative');

-- resolve_key
SELECT is((SELECT r.outcome || r.answer::text FROM fenceguard.resolve_key('s', 'k1', fenceguard.fingerprint('{"a":1}')) r), 'committed{"ok" :  true}', 'resolve_key: committed');
SELECT is((SELECT outcome FROM fenceguard.resolve_key('s', 'k9', fenceguard.fingerprint('1'), NULL, now())), 'not_committed', 'resolve_key: not committed');
SELECT is((SELECT outcome FROM fenceguard.resolve_key('s', 'k1', fenceguard.fingerprint('{"a":3}'))), 'not_committed', 'resolve_key: the key went to another request');

-- forget_keys: a row with a retention of its own goes when that is over, another when it is old.
SELECT now() AS before \gset
SELECT fenceguard.store_answer('s', 'keep', '1', '1', NULL, '1 hour') AS ignored \gset
SELECT fenceguard.store_answer('s', 'plain', '1', '1') AS ignored \gset
SELECT is(fenceguard.forget_keys('1 hour'), 1::bigint, 'only what is past its time');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM fenceguard.idempotency), 'keep plain', 'k1 is gone');
SELECT is((SELECT replayed FROM fenceguard.replay('s', 'k1', '{"a": 1}')), false, 'a forgotten key takes effect again');
SELECT is(fenceguard.forget_keys('0 s'), 1::bigint, 'a key without a retention goes by its age');
SELECT is((SELECT key FROM fenceguard.idempotency), 'keep', 'one with a retention stays until it is over');
SELECT is((SELECT outcome FROM fenceguard.resolve_key('s', 'plain', fenceguard.fingerprint('1'), NULL, :'before')), 'unknown', 'resolve_key: may have been stored and forgotten');
SELECT is(app.raised('SELECT fenceguard.forget_keys(NULL)') LIKE '22023 %', true, 'an age must be given');
SELECT is(app.raised('SELECT fenceguard.forget_keys(''1 s'', 1000001)') LIKE '22023 %', true, 'a batch too large');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT is(app.raised('SELECT fenceguard.resolve_key(''s'', ''k'', ''\x00'')') LIKE '25001 %', true, 'not on an old snapshot');
ROLLBACK;
SELECT * FROM finish();
