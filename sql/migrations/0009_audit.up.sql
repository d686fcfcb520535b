-- 0009: what would let a write slip past, with the statement that mends it.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(9, 'audit');

-- Roles that were granted SET on session_replication_role; 0 is PUBLIC. There is no such right before PostgreSQL 15. In PL/pgSQL,
-- because pg_parameter_acl is looked for only where the statement is reached.
CREATE FUNCTION fenceguard.replication_role_setters() RETURNS SETOF oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('server_version_num')::int >= 150000 THEN
    RETURN QUERY
      SELECT g.grantee FROM pg_parameter_acl AS p CROSS JOIN LATERAL aclexplode(p.paracl) AS g
        WHERE p.parname = 'session_replication_role' AND g.privilege_type = 'SET' AND g.grantee <> g.grantor;
  END IF;
END $$;

-- No row means no finding. Reads the catalogue only, locks nothing, and takes every role's word for its own tables: who
-- may read pg_catalog sees all of it.
--   severity  'error': a write or a promise can be lost; 'warning': it takes one more mistake
--   subject   the table, role, database or prepared transaction
--   finding   what is so
--   reason    why it matters
--   remedy    the SQL statement that mends it; where there is a choice, the safest
CREATE VIEW fenceguard.audit AS
WITH user_table AS (
  SELECT c.oid, c.oid::regclass AS relation, c.relkind, c.relispartition, c.relowner,
         format('%I.%I', n.nspname, c.relname) AS qualified
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND n.nspname <> 'fenceguard' AND n.nspname !~ '^pg_'),
-- protected tables, and what their triggers' arguments say beside what the catalogue says now
key_trigger AS (
  SELECT t.tgrelid, u.qualified, u.relkind, p.template, p.columns, p.enabled,
         (t.tgnargs - 2) / 3 AS width,
         string_to_array(encode(t.tgargs, 'escape'), '\000') AS arguments, t.tgattr::int2[] AS numbers
    FROM pg_trigger AS t
    JOIN pg_proc AS f ON f.oid = t.tgfoid AND f.proname = 'protect_key'
      AND f.pronamespace = 'fenceguard'::regnamespace
    JOIN user_table AS u ON u.oid = t.tgrelid
    JOIN fenceguard.protected_tables AS p ON p.relation = u.relation),
required_trigger AS (
  SELECT k.qualified AS root, k.template, k.tgrelid AS relid, w.name
    FROM key_trigger AS k
    CROSS JOIN unnest(CASE k.relkind WHEN 'p' THEN '{fenceguard_row,fenceguard_truncate}'
      ELSE '{fenceguard_insert,fenceguard_update,fenceguard_delete,fenceguard_rekey,fenceguard_truncate}'
      END::text[]) AS w(name)
  UNION
  SELECT k.qualified, k.template, p.relid, w.name
    FROM key_trigger AS k
    CROSS JOIN pg_partition_tree(k.tgrelid) AS p
    CROSS JOIN unnest('{fenceguard_row,fenceguard_truncate}'::text[]) AS w(name)
    WHERE k.relkind = 'p'),
token_column AS (
  SELECT u.*, a.attnum, a.attnotnull, a.atttypid FROM user_table AS u
    JOIN pg_attribute AS a ON a.attrelid = u.oid AND a.attname = 'fencing_token' AND NOT a.attisdropped),
required_token_trigger AS (
  SELECT c.oid AS relid, c.qualified, w.name
    FROM token_column AS c
    CROSS JOIN unnest('{fenceguard_token_after,~fenceguard_token_before}'::text[]
      || CASE WHEN c.relkind = 'p' OR c.relispartition THEN '{fenceguard_token_row}'::text[]
              ELSE '{fenceguard_token_insert,fenceguard_token_update}'::text[] END) AS w(name)),
granted AS (   -- who was given claim() by name; its owner was not
  SELECT DISTINCT g.grantee FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS g
    WHERE p.pronamespace = 'fenceguard'::regnamespace AND p.proname IN ('claim', 'open_guarded')
      AND g.privilege_type = 'EXECUTE' AND g.grantee NOT IN (0, p.proowner)),
setting AS (
  SELECT s.setdatabase, s.setrole, d.datname, r.rolname, split_part(c.text, '=', 1) AS name,
         substr(c.text, position('=' IN c.text) + 1) AS value
    FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS c(text)
    LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
    LEFT JOIN pg_roles AS r ON r.oid = s.setrole
    WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))

SELECT 'error' AS severity, r.relid::regclass::text AS subject,
       format('trigger %s is %s', quote_ident(r.name), CASE WHEN t.oid IS NULL THEN 'missing' ELSE 'disabled' END) AS finding,
       CASE WHEN r.name = 'fenceguard_truncate' AND r.relid::regclass::text <> r.root
            THEN 'TRUNCATE of this table alone would empty it; PostgreSQL clones no TRUNCATE trigger to a partition'
            ELSE 'the table is protected, but not against every kind of write' END AS reason,
       format('SELECT fenceguard.protect(%L, %L);', r.root, r.template) AS remedy
  FROM required_trigger AS r
  LEFT JOIN fenceguard.protection_trigger AS t ON t.relation = r.relid AND t.name = r.name
  WHERE t.enabled IS NOT TRUE
UNION ALL
SELECT 'error', k.qualified, 'the key columns of its template were renamed or swapped',
       format('the template %s was written for other names than %s; every write is refused', quote_literal(k.template),
              k.columns),
       format('SELECT fenceguard.protect(%L, ''<the template with the columns as they are called now>'');', k.qualified)
  FROM key_trigger AS k
  WHERE cardinality(k.columns) <> k.width
     OR EXISTS (SELECT FROM unnest(k.columns) WITH ORDINALITY AS c(name, i)
                WHERE encode(convert_to(c.name, getdatabaseencoding()), 'escape') <> k.arguments[k.width + 2 + c.i])
UNION ALL
SELECT 'warning', k.qualified, 'the key columns have other attribute numbers than when it was protected',
       'as after a dump and restore of a table that had dropped columns: the checks hold, but take longer',
       format('SELECT fenceguard.protect(%L, %L);', k.qualified, k.template)
  FROM key_trigger AS k
  WHERE EXISTS (SELECT FROM unnest(k.columns) WITH ORDINALITY AS c(name, i)
                JOIN pg_attribute AS a ON a.attrelid = k.tgrelid AND a.attname = c.name
                WHERE a.attnum::text <> k.arguments[2 * k.width + 2 + c.i]
                  AND encode(convert_to(c.name, getdatabaseencoding()), 'escape') = k.arguments[k.width + 2 + c.i])
UNION ALL
SELECT 'error', t.relation::text, 'has protection triggers and is not protected',
       'it was detached from a protected table, or its trigger fenceguard_key was dropped with a column',
       format('SELECT fenceguard.unprotect(%L);  -- or protect it by a template', t.qualified_relation)
  FROM (SELECT DISTINCT relation, qualified_relation FROM fenceguard.protection_trigger) AS t
  WHERE NOT EXISTS (SELECT FROM required_trigger AS r WHERE r.relid = t.relation)
UNION ALL
SELECT 'error', i.inhrelid::regclass::text, format('is an inheritance child of %s', u.qualified),
       'rows of the child show up in its guarded parent, and a write to the child fires no guard',
       format('ALTER TABLE %s NO INHERIT %s;', i.inhrelid::regclass, u.qualified)
  FROM pg_inherits AS i
  JOIN user_table AS u ON u.oid = i.inhparent AND u.relkind = 'r'
  WHERE EXISTS (SELECT FROM fenceguard.protection_trigger AS t WHERE t.relation = u.oid)
     OR EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t WHERE t.relation = u.oid)
UNION ALL
SELECT 'error', u.qualified, format('role %s, which has been granted claim(), can act as its owner', r.rolname),
       'the owner can disable triggers and drop them',
       format('ALTER TABLE %s OWNER TO <a role that is not the application''s>;', u.qualified)
  FROM user_table AS u
  JOIN granted AS g ON pg_has_role(g.grantee, u.relowner, 'MEMBER')
  JOIN pg_roles AS r ON r.oid = g.grantee AND NOT r.rolsuper
  WHERE NOT u.relispartition
    AND (EXISTS (SELECT FROM fenceguard.protection_trigger AS t WHERE t.relation = u.oid)
         OR EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t WHERE t.relation = u.oid))
UNION ALL
SELECT 'error', format('role %I', r.rolname), format('has been granted claim() and may %s table %s', string_agg(
         a.privilege_type, ', ' ORDER BY a.privilege_type), c.oid::regclass),
       'who writes the fence, the tokens or the keys can forge a claim',
       format('REVOKE INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER ON %s FROM %I;', c.oid::regclass, r.rolname)
  FROM pg_class AS c
  CROSS JOIN LATERAL aclexplode(c.relacl) AS a
  JOIN granted AS g ON g.grantee = a.grantee
  JOIN pg_roles AS r ON r.oid = a.grantee
  WHERE c.relnamespace = 'fenceguard'::regnamespace AND c.relkind = 'r' AND a.grantee <> c.relowner
    AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
  GROUP BY r.rolname, c.oid
UNION ALL
SELECT 'error', c.qualified, 'has a column fencing_token and no guard',
       'a writer that forgets the column, or lowers it, is not refused',
       format('SELECT fenceguard.add_row_fence(%L);', c.qualified)
  FROM token_column AS c
  WHERE NOT c.relispartition AND NOT EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t WHERE t.relation = c.oid)
UNION ALL
SELECT 'error', w.qualified, format('trigger %s is %s', quote_ident(w.name),
         CASE WHEN t.relation IS NULL THEN 'missing' ELSE 'disabled' END),
       'a token that goes backwards, or is left as it was, is not refused by every statement',
       format('SELECT fenceguard.add_row_fence(%L);', coalesce(pg_partition_root(w.relid), w.relid)::regclass)
  FROM required_token_trigger AS w
  LEFT JOIN fenceguard.row_fence_trigger AS t ON t.relation = w.relid AND t.name = w.name
  WHERE t.enabled IS NOT TRUE
    AND EXISTS (SELECT FROM fenceguard.row_fence_trigger AS other
                WHERE other.relation = coalesce(pg_partition_root(w.relid), w.relid))
UNION ALL
SELECT 'error', t.relation::text, 'has the row fence''s triggers and no bigint column fencing_token',
       'the column was renamed, dropped or retyped: every write is refused',
       format('SELECT fenceguard.remove_row_fence(%L);', t.relation)
  FROM (SELECT DISTINCT relation FROM fenceguard.row_fence_trigger WHERE NOT cloned) AS t
  WHERE NOT EXISTS (SELECT FROM token_column AS c WHERE c.oid = t.relation AND c.atttypid = 'int8'::regtype)
UNION ALL
SELECT 'warning', c.qualified, CASE WHEN NOT c.attnotnull THEN 'fencing_token may be null'
                                    WHEN k.oid IS NULL THEN 'fencing_token has no range check'
                                    ELSE 'the range check of fencing_token is not validated' END,
       'one write of a number near 2^63 would shut everybody out of its row for ever',
       format('SELECT fenceguard.add_row_fence(%L);', c.qualified)
  FROM token_column AS c
  LEFT JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.conname = 'fencing_token_range'
  WHERE NOT c.relispartition AND EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t WHERE t.relation = c.oid)
    AND (NOT c.attnotnull OR k.convalidated IS NOT TRUE)
UNION ALL
SELECT 'warning', c.qualified, format('index %s is on fencing_token', i.indexrelid::regclass),
       'every write changes the column, so none can be a HOT update any more',
       format('DROP INDEX CONCURRENTLY %s;', i.indexrelid::regclass)
  FROM token_column AS c
  JOIN pg_index AS i ON i.indrelid = c.oid AND c.attnum = ANY (i.indkey::int2[])
UNION ALL
SELECT 'warning', c.qualified, format('trigger %I runs after the row fence''s', t.tgname),
       'BEFORE triggers run in the order of their names; this one can lower the token of a row that moves to another partition',
       format('ALTER TRIGGER %I ON %s RENAME TO <a name that begins with a letter>;', t.tgname, c.qualified)
  FROM token_column AS c
  JOIN pg_trigger AS t ON t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgparentid <> 0)
    AND t.tgtype::int & 19 = 19   -- FOR EACH ROW, BEFORE, UPDATE
    AND t.tgname::text COLLATE "C" > '~fenceguard_token_before'
  WHERE EXISTS (SELECT FROM fenceguard.row_fence_trigger AS f WHERE f.relation = c.oid)
    AND (c.relkind = 'p' OR c.relispartition)
UNION ALL
SELECT 'warning', format('prepared transaction %s', p.gid), format('holds claims since %s', p.prepared),
       'no timeout ends it and it has no process to end: its resources stay locked',
       format('ROLLBACK PREPARED %L;  -- or COMMIT PREPARED', p.gid)
  FROM pg_prepared_xacts AS p
  WHERE p.database = current_database()
    AND EXISTS (SELECT FROM pg_locks AS x
                JOIN pg_locks AS l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL
                  AND l.relation = 'fenceguard.fence'::regclass AND l.mode = 'RowExclusiveLock'
                WHERE x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.pid IS NULL)
UNION ALL
SELECT 'error', concat_ws(' ', 'role ' || quote_ident(s.rolname), 'database ' || quote_ident(s.datname)),
       format('%s is set to %s', s.name, s.value),
       CASE s.name WHEN 'session_replication_role' THEN 'sessions start with triggers that do not fire'
                   ELSE 'a commit that was answered can be lost in a crash, with the fence it raised' END,
       format('ALTER %s RESET %s;', CASE WHEN s.setrole = 0 THEN format('DATABASE %I', s.datname)
         ELSE format('ROLE %I', s.rolname) || CASE WHEN s.setdatabase = 0 THEN '' ELSE format(' IN DATABASE %I', s.datname)
         END END, s.name)
  FROM setting AS s
  WHERE s.name = 'session_replication_role' AND s.value = 'replica'
     OR s.name = 'synchronous_commit' AND lower(s.value) IN ('off', 'false', 'no', '0')
UNION ALL
SELECT CASE WHEN r.oid IS NULL OR EXISTS (SELECT FROM granted AS g WHERE pg_has_role(g.grantee, r.oid, 'MEMBER'))
            THEN 'error' ELSE 'warning' END,
       coalesce('role ' || quote_ident(r.rolname), 'PUBLIC'), 'may set session_replication_role',
       'in a session that sets it to replica, no trigger fires that guards a table',
       format('REVOKE SET ON PARAMETER session_replication_role FROM %s;', coalesce(quote_ident(r.rolname), 'PUBLIC'))
  FROM fenceguard.replication_role_setters() AS s(grantee)
  LEFT JOIN pg_roles AS r ON r.oid = s.grantee
  WHERE r.rolsuper IS NOT TRUE
UNION ALL
SELECT 'warning', u.qualified, 'a guarded transaction is writing it now, and it is neither protected nor row-fenced',
       'a writer that skips the claim is not refused here',
       format('SELECT fenceguard.protect(%L, ''<template>'');', u.qualified)
  FROM user_table AS u
  WHERE EXISTS (SELECT FROM pg_locks AS w
                JOIN pg_locks AS f ON f.virtualtransaction = w.virtualtransaction AND f.database = w.database
                  AND f.relation = 'fenceguard.fence'::regclass AND f.mode = 'RowExclusiveLock'
                WHERE w.relation = u.oid AND w.mode = 'RowExclusiveLock' AND w.granted
                  AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
    AND NOT EXISTS (SELECT FROM fenceguard.protection_trigger AS t
                    WHERE t.relation = coalesce(pg_partition_root(u.oid)::oid, u.oid))
    AND NOT EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t
                    WHERE t.relation = coalesce(pg_partition_root(u.oid)::oid, u.oid));
COMMENT ON VIEW fenceguard.audit IS
  'What would let a write slip past the fence, each with the statement that mends it; no row where all is well.';

SELECT fenceguard.end_migration(9, 'audit');
COMMIT;
