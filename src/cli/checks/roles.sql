-- The role that looks, and what the schema's owner needs to see and end other roles' sessions.
SELECT 'warning' AS severity, pg_catalog.format('role %I', r.rolname) AS subject, 'is a superuser' AS finding,
       'no privilege and no trigger binds a superuser: an application that connects so is not held by the fence' AS reason,
       'give the application a role of its own by sql/roles/application.sql, and run doctor as the operator''s' AS remedy
  FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user AND r.rolsuper
UNION ALL
SELECT 'notice', pg_catalog.format('role %I', r.rolname),
       'cannot see or end the sessions of other roles',
       'it owns the schema: errors do not say since when a resource is held, and evict() refuses',
       pg_catalog.format('GRANT pg_read_all_stats, pg_signal_backend TO %I;', r.rolname)
  FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_roles AS r ON r.oid = n.nspowner
  WHERE n.nspname = 'fenceguard' AND NOT r.rolsuper
    AND NOT (pg_catalog.pg_has_role(r.oid, 'pg_read_all_stats', 'USAGE')
             AND pg_catalog.pg_has_role(r.oid, 'pg_signal_backend', 'USAGE'))
