BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(9, 'audit');
DROP VIEW fenceguard.audit;
DROP FUNCTION fenceguard.replication_role_setters();
SELECT fenceguard.end_rollback(9);
COMMIT;
