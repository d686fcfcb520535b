-- Takes 0003 away, with all fences: afterwards nothing stops a stale holder.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(3, 'fence');
DROP FUNCTION fenceguard.forget_fences(interval, int);
DROP FUNCTION fenceguard.resolve(text, xid8, timestamptz, xid8, timestamptz, int);
DROP FUNCTION fenceguard.await_fence(text, int);
DROP FUNCTION fenceguard.await_lock(bigint, int);
DROP FUNCTION fenceguard.describe_lock_holder(bigint);
DROP FUNCTION fenceguard.advisory_locks();
DROP FUNCTION fenceguard.fence_lock(text);
DROP TABLE fenceguard.fence;
SELECT fenceguard.end_rollback(3);
COMMIT;
