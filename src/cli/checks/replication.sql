-- Physical standbys, and whether anybody waits for them.
WITH standby AS (
  SELECT r.pid, r.sync_state FROM pg_catalog.pg_stat_replication AS r
    WHERE coalesce(r.state, 'streaming') = 'streaming'
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s
                      WHERE s.active_pid = r.pid AND s.slot_type = 'logical'))
SELECT 'notice' AS severity, 'setting synchronous_standby_names' AS subject,
       pg_catalog.format('is empty while %s standby server(s) are attached', count(*)) AS finding,
       'after a promotion the last commits may be missing, fences together with the data they guard' AS reason,
       'ALTER SYSTEM SET synchronous_standby_names = ''ANY 1 (*)''; SELECT pg_reload_conf();' AS remedy
  FROM standby
  WHERE pg_catalog.current_setting('synchronous_standby_names') = ''
  HAVING count(*) > 0
UNION ALL
-- Who may not see the states of other roles' processes cannot tell.
SELECT 'warning', 'setting synchronous_standby_names',
       pg_catalog.format('is %s and no synchronous standby is attached',
                         quote_literal(pg_catalog.current_setting('synchronous_standby_names'))),
       'every commit waits until one is, and holds its resources meanwhile',
       'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();  -- or start the standby'
  WHERE pg_catalog.current_setting('synchronous_standby_names') <> ''
    AND pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
    AND NOT EXISTS (SELECT FROM standby WHERE sync_state IN ('sync', 'quorum'))
UNION ALL
SELECT 'error', 'server', 'is a standby', 'tokens are issued and resources claimed on the primary only',
       'connect to the primary: add target_session_attrs=read-write to the connection string'
  WHERE pg_catalog.pg_is_in_recovery()
