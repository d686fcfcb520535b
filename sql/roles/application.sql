-- What a service needs: EXECUTE on the functions of its work, no right on any table but to read which migrations stand.
-- It cannot write fences, tokens or keys, disable triggers, evict, forget, or raise the floor.
--
--   psql -f sql/roles/application.sql [-v application=fenceguard_application]
--
-- Run it as the owner of the schema (who may not be able to create the role: make it first), and again after a migration.
\set ON_ERROR_STOP on
\if :{?application}
\else
  \set application fenceguard_application
\endif

SELECT format('CREATE ROLE %I NOLOGIN', :'application')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'application') \gexec

GRANT USAGE ON SCHEMA fenceguard TO :"application";
GRANT SELECT ON fenceguard.schema_version TO :"application";
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::pg_catalog.regprocedure, :'application')
  FROM pg_catalog.pg_proc p
 WHERE p.pronamespace = 'fenceguard'::pg_catalog.regnamespace
   AND p.proname IN ('reserve_tokens', 'open_guarded', 'close_guarded', 'claim', 'replay', 'store_answer', 'fingerprint',
                     'execute_once_open', 'execute_once_close', 'resolve', 'resolve_key', 'database_identity', 'altered_objects',
                     'lease_acquire', 'lease_number', 'lease_renew', 'lease_release', 'lease_inspect', 'live_leases')
\gexec
