-- Refused by PostgreSQL while a table is protected: call fenceguard.unprotect for each of fenceguard.protected_tables first.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(8, 'protect');
DROP VIEW fenceguard.protected_tables;
DROP FUNCTION fenceguard.unprotect(regclass, bool);
DROP FUNCTION fenceguard.protect(regclass, text, bool);
DROP VIEW fenceguard.protection_trigger;
DROP FUNCTION fenceguard.protection_triggers(regclass, text);
DROP FUNCTION fenceguard.check_row();
DROP FUNCTION fenceguard.check_statement();
DROP FUNCTION fenceguard.refuse_truncate();
DROP FUNCTION fenceguard.protect_key();
DROP FUNCTION fenceguard.key_texts(text, text[]);
DROP FUNCTION fenceguard.require_columns(oid, text[], int2[]);
DROP FUNCTION fenceguard.refuse_write(oid, text);
DROP FUNCTION fenceguard.resource_name(text[], text[]);
DROP FUNCTION fenceguard.parse_template(text);
SELECT fenceguard.end_rollback(8);
COMMIT;
