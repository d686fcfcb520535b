-- Takes 0001 away. The schema itself goes only where the role could make it again, and only when nothing else is in it.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(1, 'schema');

DROP FUNCTION fenceguard.end_rollback(int);
DROP FUNCTION fenceguard.begin_rollback(int, text);
DROP FUNCTION fenceguard.end_migration(int, text);
DROP FUNCTION fenceguard.begin_migration(int, text);
DROP FUNCTION fenceguard.altered_objects();
DROP FUNCTION fenceguard.record_objects();
DROP FUNCTION fenceguard.current_objects();
DROP TABLE fenceguard.recorded_objects;
DROP TABLE fenceguard.schema_version;

DO $$
BEGIN
  IF has_database_privilege(current_database(), 'CREATE')
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                      WHERE d.refclassid = 'pg_catalog.pg_namespace'::regclass
                        AND d.refobjid = 'fenceguard'::regnamespace) THEN
    DROP SCHEMA fenceguard;
  END IF;
END $$;
COMMIT;
