-- Claims that have been open for longer than $1 seconds. The audit has those of prepared transactions.
SELECT 'warning' AS severity, coalesce('resource ' || i.resource, pg_catalog.format('pid %s', i.pid)) AS subject,
       pg_catalog.format('pid %s has claimed it since %s under token %s, and is %s', i.pid, i.since, i.token,
                         coalesce(i.state, 'in an unknown state')) AS finding,
       'whoever comes next is refused as busy until that transaction ends' AS reason,
       CASE WHEN i.resource IS NULL THEN pg_catalog.format('SELECT pg_terminate_backend(%s);', i.pid)
            ELSE pg_catalog.format('SELECT fenceguard.evict(%L, %s);', i.resource, i.token + 1) END AS remedy
  FROM fenceguard.in_flight AS i
  WHERE i.pid IS NOT NULL AND i.age > pg_catalog.make_interval(secs => $1::float8)
