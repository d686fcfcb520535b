-- Settings as this session has them. Those of single roles and databases are in the view fenceguard.audit as well.
WITH current AS (
  SELECT s.*, CASE WHEN s.setting ~ '^-?[0-9]+$' THEN s.setting::bigint END AS number
    FROM pg_catalog.pg_settings AS s),
bad AS (
  SELECT 'error' AS severity, c.*, 'on' AS good,
         'a crash of the machine can lose or damage what was committed, fences and tokens included' AS reason
    FROM current AS c WHERE c.name IN ('fsync', 'full_page_writes') AND c.setting = 'off'
  UNION ALL
  -- for roles and databases the audit says it
  SELECT 'error', c.*, 'on', 'a commit that was answered can be lost in a crash, with the fence it raised'
    FROM current AS c
    WHERE c.name = 'synchronous_commit' AND c.setting = 'off' AND c.source NOT IN ('database', 'user', 'database user')
  UNION ALL
  SELECT 'warning', c.*, 'on',
         'commits do not wait for the synchronous standbys, so the one that is promoted can lack fences and their writes'
    FROM current AS c
    WHERE c.name = 'synchronous_commit' AND c.setting = 'local'
      AND pg_catalog.current_setting('synchronous_standby_names') <> ''
  UNION ALL
  SELECT 'error', c.*, 'origin', 'triggers do not fire, so no table is protected'
    FROM current AS c
    WHERE c.name = 'session_replication_role' AND c.setting = 'replica'
      AND c.source NOT IN ('database', 'user', 'database user')
  UNION ALL
  SELECT 'warning', c.*, 'on', 'dead rows of the fence and the counter are never removed, and every claim gets slower'
    FROM current AS c WHERE c.name IN ('autovacuum', 'track_counts') AND c.setting = 'off'
  UNION ALL
  SELECT 'warning', c.*, '0', 'a guarded transaction is ended in its first pause; fenceguard sets a bound of its own'
    FROM current AS c
    WHERE c.name = 'idle_in_transaction_session_timeout' AND c.number BETWEEN 1 AND 999
  UNION ALL
  SELECT 'warning', c.*, '0', 'claims and writes are refused on the shortest wait for another transaction'
    FROM current AS c WHERE c.name = 'lock_timeout' AND c.number BETWEEN 1 AND 9
  UNION ALL
  SELECT 'warning', c.*, '0', 'ordinary statements are cancelled, and with them the guarded transaction they are part of'
    FROM current AS c WHERE c.name IN ('statement_timeout', 'transaction_timeout') AND c.number BETWEEN 1 AND 999
  UNION ALL
  SELECT 'warning', c.*, '0', 'connections that wait in a pool are closed all the time'
    FROM current AS c WHERE c.name = 'idle_session_timeout' AND c.number BETWEEN 1 AND 9999
  UNION ALL
  SELECT 'warning', c.*, '1s', 'transactions that wait for each other hold their resources for that long'
    FROM current AS c WHERE c.name = 'deadlock_timeout' AND c.number > 60000
  UNION ALL
  SELECT 'warning', c.*, 'off', 'sessions cannot claim, write or reserve tokens unless they say READ WRITE'
    FROM current AS c WHERE c.name = 'default_transaction_read_only' AND c.setting = 'on'
  UNION ALL
  SELECT 'notice', c.*, 'read committed',
         'claims are made in READ COMMITTED; clients other than fenceguard''s library must say so in BEGIN'
    FROM current AS c WHERE c.name = 'default_transaction_isolation' AND c.setting <> 'read committed')
SELECT b.severity, 'setting ' || b.name AS subject,
       pg_catalog.format('is %s', CASE WHEN b.unit = 'ms' THEN b.setting || ' ms' ELSE b.setting END) AS finding, b.reason,
       -- ALTER DATABASE and ALTER ROLE are refused in a transaction that is read only.
       CASE WHEN b.name = 'default_transaction_read_only' THEN 'SET default_transaction_read_only = off; ' ELSE '' END ||
       CASE b.source
         WHEN 'database' THEN pg_catalog.format('ALTER DATABASE %I RESET %s;', pg_catalog.current_database(), b.name)
         WHEN 'user' THEN pg_catalog.format('ALTER ROLE %I RESET %s;', session_user, b.name)
         WHEN 'database user' THEN pg_catalog.format('ALTER ROLE %I IN DATABASE %I RESET %s;', session_user,
                                                     pg_catalog.current_database(), b.name)
         WHEN 'client' THEN pg_catalog.format('take %s out of the connection''s options (PGOPTIONS)', b.name)
         WHEN 'command line' THEN pg_catalog.format('take %s off the server''s command line', b.name)
         ELSE pg_catalog.format('ALTER SYSTEM SET %s = %L; SELECT pg_reload_conf();', b.name, b.good)
       END AS remedy
  FROM bad AS b
