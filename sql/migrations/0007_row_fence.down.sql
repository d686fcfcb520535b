-- Refused by PostgreSQL while a table has a row fence: call fenceguard.remove_row_fence for each first.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(7, 'row_fence');
DROP FUNCTION fenceguard.remove_row_fence(regclass, bool);
DROP FUNCTION fenceguard.add_row_fence(regclass, bool);
DROP VIEW fenceguard.row_fence_trigger;
DROP FUNCTION fenceguard.check_tokens();
DROP FUNCTION fenceguard.refuse_token();
DROP FUNCTION fenceguard.lock_for_ddl(regclass, text);
DROP FUNCTION fenceguard.require_owner(regclass);
SELECT fenceguard.end_rollback(7);
COMMIT;
