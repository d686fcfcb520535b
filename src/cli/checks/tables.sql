-- The schema's own tables: storage and size.
WITH own AS (
  SELECT c.oid, c.relname, c.oid::regclass AS relation, c.relpersistence, c.reloptions,
         pg_catalog.pg_relation_size(c.oid) / 8192 AS pages,
         coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead
    FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
    WHERE c.relnamespace = 'fenceguard'::regnamespace AND c.relkind = 'r')
SELECT 'error' AS severity, relation::text AS subject, 'is unlogged' AS finding,
       'a crash empties it, and a standby never has it' AS reason,
       pg_catalog.format('ALTER TABLE %s SET LOGGED;', relation) AS remedy
  FROM own WHERE relpersistence = 'u'
UNION ALL
SELECT 'warning', relation::text, 'autovacuum is switched off for it',
       'its dead rows are never removed, and every claim gets slower',
       pg_catalog.format('ALTER TABLE %s RESET (autovacuum_enabled);', relation)
  FROM own
  WHERE EXISTS (SELECT FROM pg_catalog.pg_options_to_table(reloptions) AS o
                WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::bool)
UNION ALL
SELECT 'notice', relation::text, pg_catalog.format('one row on %s pages', pages),
       'an old snapshot has kept its dead versions; whoever reads it walks over them',
       pg_catalog.format('VACUUM FULL %s;', relation)
  FROM own WHERE relname IN ('token_counter', 'server_state') AND pages > 32
UNION ALL
SELECT 'notice', relation::text, pg_catalog.format('%s dead rows beside %s live ones', dead, live),
       'autovacuum does not keep up with it', pg_catalog.format('VACUUM %s;', relation)
  FROM own WHERE relname IN ('fence', 'idempotency') AND dead > 10000 AND dead > live
