-- Whether this is still the server that wrote the state. Not on a standby, which cannot tell.
SELECT 'warning' AS severity, 'fenceguard.server_state' AS subject,
       'the server was promoted, restored or copied since tokens were last reserved' AS finding,
       'its last commits may be missing; claims are refused (TF004) until the floor is raised' AS reason,
       'SELECT fenceguard.reserve_tokens(1);' AS remedy
  FROM fenceguard.server_state AS s
  WHERE CASE WHEN pg_catalog.pg_is_in_recovery() THEN false
             ELSE EXISTS (SELECT FROM fenceguard.current_server() AS c
                          WHERE (c.system_identifier, c.database_oid, c.timeline, c.counter_oid)
                                IS DISTINCT FROM (s.system_identifier, s.database_oid, s.timeline, s.counter_oid)) END
