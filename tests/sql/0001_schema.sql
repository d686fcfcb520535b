SELECT plan(18);

SELECT is(array_agg(version ORDER BY version), ARRAY(SELECT generate_series(1, max(version)) FROM fenceguard.schema_version),
          'every migration has its row') FROM fenceguard.schema_version;
SELECT is_empty('SELECT * FROM fenceguard.altered_objects()', 'a fresh schema is as recorded');

SELECT is(app.raised($$SELECT fenceguard.begin_migration(3, 'fence')$$) LIKE '42710 migration 3 (fence) is already applied%', true,
          'a migration applied twice is a clear error');
SELECT is(app.raised($$SELECT fenceguard.begin_migration(99, 'x')$$) LIKE '55000 migration 99 (x) does not follow%', true,
          'a migration that leaves one out is a clear error');
SELECT is(app.raised($$SELECT fenceguard.begin_rollback(1, 'schema')$$) LIKE '55000 migration 1 (schema) is not the newest%', true,
          'only the newest migration can be taken away');

-- Every kind of alteration by hand is told, and by its kind.
BEGIN;
CREATE OR REPLACE FUNCTION fenceguard.fingerprint(request json) RETURNS bytea
  LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS 'SELECT sha256(''x'')';
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('altered', 'function', 'fenceguard.fingerprint(json)')$$, 'another body');
ROLLBACK;
BEGIN;
ALTER FUNCTION fenceguard.evict(text, bigint) RESET search_path;
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('altered', 'function', 'fenceguard.evict(text,bigint)')$$, 'a search_path that is not pinned any more');
ROLLBACK;
BEGIN;
ALTER FUNCTION fenceguard.evict(text, bigint) SECURITY INVOKER;
SELECT results_eq('SELECT finding, object FROM fenceguard.altered_objects()',
  $$VALUES ('altered', 'fenceguard.evict(text,bigint)')$$, 'SECURITY DEFINER taken off');
ROLLBACK;
BEGIN;
DROP INDEX fenceguard.idempotency_age;
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('missing', 'index', 'fenceguard.idempotency_age')$$, 'an index dropped');
ROLLBACK;
BEGIN;
ALTER TABLE fenceguard.fence DROP CONSTRAINT fence_token_range;
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('missing', 'constraint', 'fenceguard.fence.fence_token_range')$$, 'a constraint dropped');
ROLLBACK;
BEGIN;
ALTER TABLE fenceguard.fence SET UNLOGGED;
SELECT results_eq('SELECT finding, kind, object FROM fenceguard.altered_objects() WHERE kind = ''table''',
  $$VALUES ('altered', 'table', 'fenceguard.fence')$$, 'a table made unlogged');
ROLLBACK;
BEGIN;
ALTER TABLE fenceguard.fence ADD COLUMN note text;
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('altered', 'table', 'fenceguard.fence')$$, 'a column added');
ROLLBACK;
BEGIN;
CREATE FUNCTION app.meddle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER meddle BEFORE UPDATE ON fenceguard.fence FOR EACH ROW EXECUTE FUNCTION app.meddle();
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('unexpected', 'trigger', 'fenceguard.fence.meddle')$$, 'a trigger added');
ROLLBACK;
BEGIN;
CREATE TABLE fenceguard.visitor (id int);
SELECT results_eq('SELECT * FROM fenceguard.altered_objects()',
  $$VALUES ('unexpected', 'table', 'fenceguard.visitor')$$, 'a table added');
SELECT fenceguard.record_objects();
SELECT is_empty('SELECT * FROM fenceguard.altered_objects()', 'record_objects() takes it for right');
ROLLBACK;

SELECT is_empty($$SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'fenceguard'::regnamespace
                   AND NOT coalesce(p.proconfig::text LIKE '%search_path=pg_catalog, pg_temp%', false)$$,
                'every function has its search_path pinned, pg_temp last');
SELECT is_empty($$SELECT p.oid::regprocedure FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                   WHERE p.pronamespace = 'fenceguard'::regnamespace AND a.grantee = 0$$,
                'PUBLIC may execute nothing');
SELECT is((SELECT rolsuper OR has_database_privilege(current_database(), 'CREATE') FROM pg_roles WHERE rolname = current_user),
          false, 'this runs without superuser and without CREATE on the database');
SELECT * FROM finish();
