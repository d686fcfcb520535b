-- Takes 0004 away, with all stored answers: afterwards every repeat takes effect again.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(4, 'idempotency');
DROP FUNCTION fenceguard.forget_keys(interval, int);
DROP FUNCTION fenceguard.resolve_key(text, text, bytea, int, timestamptz);
DROP FUNCTION fenceguard.store_answer(text, text, json, json, bigint, interval);
DROP FUNCTION fenceguard.check_key(text, text);
DROP FUNCTION fenceguard.await_key(text, text, int);
DROP FUNCTION fenceguard.key_lock(text, text);
DROP FUNCTION fenceguard.fingerprint(json);
DROP TABLE fenceguard.idempotency;
SELECT fenceguard.end_rollback(4);
COMMIT;
