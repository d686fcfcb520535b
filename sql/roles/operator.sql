-- What an operator needs beyond a service: to see open claims and end them, to forget old fences and keys, and to raise the
-- floor after a rollback that no identity shows.
--
--   psql -f sql/roles/operator.sql [-v operator=fenceguard_operator]
--
-- Run it as the owner of the schema, and again after a migration. evict() runs with the owner's rights: the operator
-- needs no pg_signal_backend, the owner does (owner.sql grants it). The sessions of a superuser only a superuser can end.
\set ON_ERROR_STOP on
\if :{?operator}
\else
  \set operator fenceguard_operator
\endif
\set application :operator
\ir application.sql

SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::pg_catalog.regprocedure, :'operator')
  FROM pg_catalog.pg_proc p
 WHERE p.pronamespace = 'fenceguard'::pg_catalog.regnamespace
   AND p.proname IN ('open_claims', 'evict', 'forget_fences', 'forget_keys', 'forget_leases', 'live_leases', 'lease_inspect', 'raise_floor', 'current_server',
                     'replication_role_setters')
\gexec
SELECT format('GRANT SELECT ON %s TO %I', c.oid::pg_catalog.regclass, :'operator')
  FROM pg_catalog.pg_class c
 WHERE c.relnamespace = 'fenceguard'::pg_catalog.regnamespace
   AND c.relname IN ('in_flight', 'fence', 'token_counter', 'server_state', 'recorded_objects', 'protected_tables', 'audit')
\gexec
-- How many keys there are and how old they are, never the answers.
GRANT SELECT (created_at, expires_at) ON fenceguard.idempotency TO :"operator";
