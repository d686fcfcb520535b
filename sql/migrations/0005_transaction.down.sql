-- Takes 0005 away.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(5, 'transaction');
DROP FUNCTION fenceguard.execute_once_close(text, text, json, json, bigint, interval);
DROP FUNCTION fenceguard.execute_once_open(text[], bigint[], text[], text, text, json, int, int);
DROP FUNCTION fenceguard.close_guarded(xid8, text, text, bytea, json, bigint, interval);
DROP FUNCTION fenceguard.replay(text, text, json, int);
DROP FUNCTION fenceguard.claim(text, bigint, text, int, int);
DROP FUNCTION fenceguard.open_guarded(text[], bigint[], text[], text, text, json, int, int);
DROP FUNCTION fenceguard.claim_all(text[], bigint[], text[], bool, int, int);
DROP FUNCTION fenceguard.write_fence(text, bigint, text);
DROP FUNCTION fenceguard.check_claims(text[], bigint[], text[], bool, int, int);
DROP FUNCTION fenceguard.check_issued(bigint);
DROP FUNCTION fenceguard.tighten_timeouts(int);
SELECT fenceguard.end_rollback(5);
COMMIT;
