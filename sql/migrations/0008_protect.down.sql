-- Refused by PostgreSQL while a table is protected: call fenceguard.unprotect for each of fenceguard.protected_tables first.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(8, 'protect');
DROP VIEW fenceguard.protected_tables;
DROP FUNCTION fenceguard.unprotect(regclass, bool);
DROP FUNCTION fenceguard.protect(regclass, text, bool);
DROP VIEW fenceguard.protection_trigger;
DROP FUNCTION fenceguard.protection_triggers(regclass, text);
DROP FUNCTION fenceguard.check_row();
DROP FUNCTION fenceguard.check_statement(), fenceguard.check_column_1(), fenceguard.check_column_2(), fenceguard.check_column_3(),
  fenceguard.check_column_4(), fenceguard.check_column_5(), fenceguard.check_column_6(), fenceguard.check_column_7(),
  fenceguard.check_column_8(), fenceguard.check_column_9(), fenceguard.check_column_10(), fenceguard.check_column_11(),
  fenceguard.check_column_12(), fenceguard.check_column_13(), fenceguard.check_column_14(), fenceguard.check_column_15(),
  fenceguard.check_column_16();
DROP FUNCTION fenceguard.refuse_truncate();
DROP FUNCTION fenceguard.protect_key();
DROP FUNCTION fenceguard.column_name(text, text);
DROP FUNCTION fenceguard.key_texts(text, text[]);
DROP FUNCTION fenceguard.require_columns(oid, text[], int2[]);
DROP FUNCTION fenceguard.refuse_write(oid, text);
DROP FUNCTION fenceguard.resource_name(text[], text[]);
DROP FUNCTION fenceguard.parse_template(text);
SELECT fenceguard.end_rollback(8);
COMMIT;
