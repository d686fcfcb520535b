-- Takes 0010 away, and every lease with it.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(10, 'lease');
DROP FUNCTION fenceguard.forget_leases(interval, int);
DROP FUNCTION fenceguard.lease_inspect(text);
DROP FUNCTION fenceguard.live_leases();
DROP FUNCTION fenceguard.lease_release(text, text);
DROP FUNCTION fenceguard.lease_renew(text[], text[], bigint[]);
DROP FUNCTION fenceguard.lease_number(text, text, bigint);
DROP FUNCTION fenceguard.lease_acquire(text, text, text, bigint, bigint, bigint);
DROP FUNCTION fenceguard.lease_call_next(text);
DROP FUNCTION fenceguard.lease_join_line(text, text, bigint);
DROP FUNCTION fenceguard.server_us();
DROP FUNCTION fenceguard.lease_lock(text);
DROP TABLE fenceguard.lease;
SELECT fenceguard.end_rollback(10);
COMMIT;
