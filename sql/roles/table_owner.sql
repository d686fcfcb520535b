-- What the owner of a table needs to protect it or to give it a row fence: EXECUTE on these functions, on no table anything. The
-- functions run as the caller, so they change only tables of the caller's own.
--
--   psql -f sql/roles/table_owner.sql [-v table_owner=fenceguard_table_owner]
--
-- Run it as the owner of the schema, and again after a migration.
\set ON_ERROR_STOP on
\if :{?table_owner}
\else
  \set table_owner fenceguard_table_owner
\endif

SELECT format('CREATE ROLE %I NOLOGIN', :'table_owner')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'table_owner') \gexec

GRANT USAGE ON SCHEMA fenceguard TO :"table_owner";
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::pg_catalog.regprocedure, :'table_owner')
  FROM pg_catalog.pg_proc p
 WHERE p.pronamespace = 'fenceguard'::pg_catalog.regnamespace
   AND (p.proname IN ('protect', 'unprotect', 'add_row_fence', 'remove_row_fence', 'require_owner', 'lock_for_ddl',
                      'parse_template', 'protection_triggers', 'replication_role_setters')
        OR p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype)
\gexec
GRANT SELECT ON fenceguard.protection_trigger, fenceguard.row_fence_trigger, fenceguard.protected_tables, fenceguard.audit
  TO :"table_owner";
