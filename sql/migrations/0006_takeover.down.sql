-- Takes 0006 away.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(6, 'takeover');
DROP FUNCTION fenceguard.evict(text, bigint);
DROP VIEW fenceguard.in_flight;
DROP FUNCTION fenceguard.open_claims();
SELECT fenceguard.end_rollback(6);
COMMIT;
