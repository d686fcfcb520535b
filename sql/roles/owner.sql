-- The role that owns the schema and runs the migrations. It need not be a superuser and cannot log in unless you say so.
--
--   psql -f sql/roles/owner.sql [-v owner=fenceguard_owner]
--
-- Run it as a role that may create roles and has the database; one that is not a superuser first makes the owner and GRANTs it
-- to itself, because only a member can give it the schema. The two predefined roles it grants can be given by a superuser, or
-- by whoever holds them with ADMIN OPTION. Leave them out (-v takeover=off) where evict() is not wanted: errors
-- then name the process that holds a resource, but not since when.
\set ON_ERROR_STOP on
\if :{?owner}
\else
  \set owner fenceguard_owner
\endif
\if :{?takeover}
\else
  \set takeover on
\endif

SELECT format('CREATE ROLE %I NOLOGIN', :'owner')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'owner') \gexec

-- The schema is made here, so that the owner needs no CREATE on the database, now or later.
SELECT format('CREATE SCHEMA fenceguard AUTHORIZATION %I', :'owner')
 WHERE pg_catalog.to_regnamespace('fenceguard') IS NULL \gexec

\if :takeover
  -- To see the sessions of other roles (in_flight, who is in the way), and to end them (evict).
  GRANT pg_read_all_stats, pg_signal_backend TO :"owner";
\endif
