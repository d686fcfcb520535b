-- Transactions that have been open for longer than $1 seconds.
SELECT 'warning' AS severity, pg_catalog.format('prepared transaction %s', p.gid) AS subject,
       pg_catalog.format('has been prepared since %s', p.prepared) AS finding,
       'no timeout ends it: its locks stay, and no dead row that it might see is removed' AS reason,
       pg_catalog.format('ROLLBACK PREPARED %L;  -- or COMMIT PREPARED', p.gid) AS remedy
  FROM pg_catalog.pg_prepared_xacts AS p
  WHERE p.database = pg_catalog.current_database()
    AND pg_catalog.clock_timestamp() - p.prepared > pg_catalog.make_interval(secs => $1::float8)
UNION ALL
SELECT 'notice', pg_catalog.format('pid %s', a.pid),
       pg_catalog.format('has kept a snapshot since %s (%s)', a.xact_start, a.application_name),
       'dead rows of the fence and the counter are kept for it, and every claim gets slower',
       pg_catalog.format('SELECT pg_terminate_backend(%s);  -- or wait for its end', a.pid)
  FROM pg_catalog.pg_stat_activity AS a
  WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
    AND a.datname = pg_catalog.current_database()
    AND pg_catalog.clock_timestamp() - a.xact_start > pg_catalog.make_interval(secs => $1::float8)
