-- 0007: the row fence: each row carries the token of its last writer, and the table refuses a lower one.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(7, 'row_fence');

CREATE FUNCTION fenceguard.require_owner(relation regclass) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF relation IS NULL THEN
    RAISE EXCEPTION 'the table must be given' USING ERRCODE = '22023';
  ELSIF NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = relation AND pg_has_role(c.relowner, 'USAGE')) THEN
    RAISE EXCEPTION 'role % does not own %', current_user, relation USING ERRCODE = '42501';
  END IF;
END $$;

-- Locks a table for DDL without standing in the way of its users: whoever waits for a strong lock makes everybody
-- queue behind it, so it waits at most 250 ms at a time and lets the queue run off in between, for about 10 s in all.
-- Then 55P03. A lock_timeout of the session that is tighter is kept.
CREATE FUNCTION fenceguard.lock_for_ddl(relation regclass, mode text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  session_timeout text := current_setting('lock_timeout');
BEGIN
  FOR attempt IN 1 .. 25 LOOP
    BEGIN
      IF session_timeout = '0' OR session_timeout::interval > interval '250 ms' THEN
        PERFORM set_config('lock_timeout', '250ms', true);
      END IF;
      EXECUTE (SELECT format('LOCK TABLE %I.%I IN %s MODE', n.nspname, c.relname, mode)
                 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = relation);
      PERFORM set_config('lock_timeout', session_timeout, true);
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      IF attempt = 25 THEN
        RAISE EXCEPTION '% is in use: the lock % was not to be had in % attempts', relation, mode, attempt
          USING ERRCODE = '55P03', HINT = 'Nothing was changed. End the long transaction that uses the table, or try again.';
      END IF;
    END;
    PERFORM pg_sleep(0.1 + random() * 0.1);
  END LOOP;
END $$;

-- Refuses the row whose token did not rise; its triggers call it only then. They do so BEFORE UPDATE, which also sees a
-- row that moves to another partition, and AFTER UPDATE, which sees what a later BEFORE trigger made of the row.
CREATE FUNCTION fenceguard.refuse_token() RETURNS trigger
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  key text;
  resource text;
BEGIN
  SELECT string_agg('/' || coalesce(to_jsonb(OLD) ->> a.attname, ''), '' ORDER BY k.position) INTO key
    FROM pg_index AS i
    CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, position)
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = TG_RELID AND i.indisprimary;
  SELECT c.relname || coalesce(key, '') INTO resource FROM pg_class AS c
    WHERE c.oid = coalesce(pg_partition_root(TG_RELID), TG_RELID);
  IF NEW.fencing_token IS NULL THEN
    RAISE EXCEPTION 'the fencing token of % must not be null', resource USING ERRCODE = '23502';
  ELSIF NEW.fencing_token = OLD.fencing_token THEN
    RAISE EXCEPTION 'unguarded write to %: it leaves the fencing token at %', resource, OLD.fencing_token
      USING ERRCODE = 'TF002', HINT = 'Each write sets fencing_token to a token higher than the row''s.';
  ELSE
    RAISE EXCEPTION 'stale token: presented %, current %, resource %', NEW.fencing_token, OLD.fencing_token, resource
      USING ERRCODE = 'TF001', DETAIL = 'row: a newer grant has written this row',
            HINT = 'Acquire the lease again.';
  END IF;
END $$;

-- Refuses a token from before a promotion, and one that nobody was given. Once per statement on a plain table, once per
-- row on a partition. VOLATILE, so that the floor is read after the row was locked, with a snapshot of its own.
CREATE FUNCTION fenceguard.check_tokens() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lowest bigint;
  highest bigint;
  state record;
BEGIN
  -- A table of somebody's own, with a type whose casts are his code, would have that code run with our rights.
  IF NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = TG_RELID AND a.attname = 'fencing_token'
                    AND a.atttypid = 'int8'::regtype AND NOT a.attisdropped) THEN
    RAISE EXCEPTION 'column fencing_token of % is gone or is no bigint', TG_RELID::regclass
      USING ERRCODE = 'TF002', HINT = 'Call fenceguard.remove_row_fence or put the column back.';
  END IF;
  IF TG_LEVEL = 'ROW' THEN
    lowest := NEW.fencing_token;
    highest := NEW.fencing_token;
  ELSIF pg_my_temp_schema() <> 0 AND to_regclass('pg_temp.fenceguard_rows') IS NOT NULL THEN
    -- Under a trigger without a transition table, made by hand, this would be a relation of the writer's: his code, our rights.
    RAISE EXCEPTION 'unguarded write to %: a temporary relation bears the name fenceguard_rows', TG_RELID::regclass
      USING ERRCODE = 'TF002', HINT = 'Drop it. The check keeps this name for the rows that a statement has written.';
  ELSE
    SELECT min(n.fencing_token), max(n.fencing_token) INTO lowest, highest FROM fenceguard_rows AS n
      WHERE n.fencing_token <> 0;
  END IF;
  IF lowest IS NULL OR highest = 0 THEN
    RETURN NULL;  -- rows that nobody has written under a token yet
  END IF;
  IF highest > date_part('epoch', clock_timestamp()) * 1000000 THEN
    PERFORM fenceguard.check_issued(highest);
  END IF;
  SELECT s.floor, s.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                  AND s.counter_oid = 'fenceguard.token_counter'::regclass AS same_server
    INTO STRICT state FROM fenceguard.server_state AS s;
  IF NOT state.same_server THEN
    RAISE EXCEPTION 'the server was promoted or restored'
      USING ERRCODE = 'TF004', HINT = 'Call fenceguard.reserve_tokens(1) on a connection of its own, then try again.';
  ELSIF lowest < state.floor THEN
    RAISE EXCEPTION 'stale token: presented %, current %, resource %', lowest, state.floor, TG_TABLE_NAME
      USING ERRCODE = 'TF001', DETAIL = 'floor: the grant is from before a promotion or restore of the server',
            HINT = 'Acquire the lease again.';
  END IF;
  RETURN NULL;
END $$;

-- The row fence's triggers that stand on a table; clones on partitions are left out.
CREATE VIEW fenceguard.row_fence_trigger AS
  SELECT t.tgrelid::regclass AS relation, t.tgname::text AS name, t.tgenabled IN ('O', 'A') AS enabled,
         t.tgparentid <> 0 AS cloned
    FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
    WHERE (NOT t.tgisinternal OR t.tgparentid <> 0)  -- before 15 a partition's clone counts as internal
      AND p.pronamespace = 'fenceguard'::regnamespace
      AND p.proname IN ('refuse_token', 'check_tokens');

-- Gives a table the column fencing_token and its guard: an UPDATE must raise the row's token. Returns the statements, in
-- order; none where all of it stands. With dry_run it only returns them.
--
-- Locks. The column has a constant default, so no row is rewritten. A function is one transaction, so the lock that ADD
-- COLUMN takes, ACCESS EXCLUSIVE, lasts to its end. Everything in it is a matter of milliseconds but VALIDATE, which
-- reads the table: above 128 MB this call leaves it out and says so in a NOTICE, and a second call, in a transaction
-- of its own, makes it up under SHARE UPDATE EXCLUSIVE, beside which everybody reads and writes. Until then the
-- check holds for every row that is written. Or run the statements that dry_run returns one by one.
--
-- What it cannot see: DELETE and INSERT of the same key start again at the new row's token. protect() stops that.
-- The column is never to be indexed: an index would end HOT updates.
--
-- Raises 22023 for what cannot have one, 42501 for a table that is not the caller's, 55P03 where the lock could not be had.
CREATE FUNCTION fenceguard.add_row_fence(fenced regclass, dry_run bool DEFAULT false) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  target record;
  token_column record;
  range_check record;
  size bigint;
  statements text[];
  statement text;
  mode text;
  locked bool := false;
  rises constant text := 'WHEN ((new.fencing_token > old.fencing_token) IS NOT TRUE)';
BEGIN
  PERFORM fenceguard.require_owner(fenced);
  SELECT c.relkind, c.relispartition, c.oid < 16384 OR n.nspname = 'fenceguard' AS system,
         format('%I.%I', n.nspname, c.relname) AS name
    INTO STRICT target FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = fenced;
  IF target.relkind NOT IN ('r', 'p') OR target.system THEN
    RAISE EXCEPTION '% is not a plain or partitioned table of a user''s', fenced USING ERRCODE = '22023';
  ELSIF target.relispartition THEN
    RAISE EXCEPTION '% is a partition: use %', fenced, pg_partition_root(fenced) USING ERRCODE = '22023';
  ELSIF target.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE fenced IN (i.inhparent, i.inhrelid)) THEN
    RAISE EXCEPTION '% takes part in inheritance: a write to the parent changes rows of its children without firing '
      'its triggers', fenced USING ERRCODE = '22023', HINT = 'Use declarative partitioning or separate tables.';
  END IF;

  LOOP
    statements := '{}';
    SELECT a.atttypid, a.attnotnull, a.atthasdef, a.attgenerated INTO token_column
      FROM pg_attribute AS a WHERE a.attrelid = fenced AND a.attname = 'fencing_token' AND NOT a.attisdropped;
    IF NOT FOUND THEN
      statements := statements || format('ALTER TABLE %s ADD COLUMN fencing_token bigint NOT NULL DEFAULT 0', target.name);
    ELSIF token_column.atttypid <> 'int8'::regtype OR token_column.attgenerated <> '' THEN
      RAISE EXCEPTION 'column fencing_token of % is not a plain bigint', fenced USING ERRCODE = '22023';
    ELSE
      IF NOT token_column.atthasdef THEN
        statements := statements || format('ALTER TABLE %s ALTER COLUMN fencing_token SET DEFAULT 0', target.name);
      END IF;
      IF NOT token_column.attnotnull THEN
        statements := statements || format('ALTER TABLE %s ALTER COLUMN fencing_token SET NOT NULL', target.name);
      END IF;
    END IF;
    SELECT c.convalidated INTO range_check
      FROM pg_constraint AS c WHERE c.conrelid = fenced AND c.conname = 'fencing_token_range';
    IF NOT FOUND THEN
      statements := statements || format('ALTER TABLE %s ADD CONSTRAINT fencing_token_range '
        'CHECK (fencing_token BETWEEN 0 AND 9007199254740991) NOT VALID', target.name);
    END IF;
    statements := statements || ARRAY(
      SELECT format('CREATE TRIGGER %s %s ON %s %s EXECUTE FUNCTION fenceguard.%s()', w.name, w.event, target.name, w.body,
                    w.function)
        FROM (VALUES
          ('r p', 'fenceguard_token_after', 'AFTER UPDATE', 'FOR EACH ROW ' || rises, 'refuse_token'),
          -- the tilde sorts after letters: BEFORE triggers run in the order of their names
          ('r p', '"~fenceguard_token_before"', 'BEFORE UPDATE', 'FOR EACH ROW ' || rises, 'refuse_token'),
          ('r', 'fenceguard_token_insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT',
           'check_tokens'),
          ('r', 'fenceguard_token_update', 'AFTER UPDATE', 'REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT',
           'check_tokens'),
          ('p', 'fenceguard_token_row', 'AFTER INSERT OR UPDATE', 'FOR EACH ROW WHEN (new.fencing_token <> 0)',
           'check_tokens')
        ) AS w(kinds, name, event, body, function)
        WHERE position(target.relkind IN w.kinds) > 0
          AND NOT EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t
                          WHERE t.relation = fenced AND quote_ident(t.name) = w.name));
    statements := statements || ARRAY(
      SELECT format('ALTER TABLE %I.%I ENABLE TRIGGER %I', n.nspname, c.relname, t.name)
        FROM fenceguard.row_fence_trigger AS t
        JOIN pg_class AS c ON c.oid = t.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE NOT t.enabled AND (t.relation = fenced OR t.relation IN (SELECT p.relid FROM pg_partition_tree(fenced) AS p))
        ORDER BY 1);
    IF range_check.convalidated IS NOT TRUE THEN
      SELECT sum(pg_relation_size(r.relid)) INTO size
        FROM (SELECT fenced::oid AS relid UNION SELECT p.relid FROM pg_partition_tree(fenced) AS p) AS r;
      IF size <= 134217728 OR statements = '{}' OR dry_run THEN
        statements := statements || format('ALTER TABLE %s VALIDATE CONSTRAINT fencing_token_range', target.name);
      ELSIF locked THEN
        RAISE NOTICE '% has %: its range check holds for new rows but is not validated', fenced, pg_size_pretty(size)
          USING HINT = 'Call fenceguard.add_row_fence again, in a transaction of its own.';
      END IF;
    END IF;
    EXIT WHEN dry_run OR locked OR statements = '{}';
    mode := CASE WHEN statements[1] LIKE '%VALIDATE CONSTRAINT%' THEN 'SHARE UPDATE EXCLUSIVE'
                 WHEN array_to_string(statements, ';') ~ 'ALTER TABLE \S+ (ADD|ALTER)' THEN 'ACCESS EXCLUSIVE'
                 ELSE 'SHARE ROW EXCLUSIVE' END;
    PERFORM fenceguard.lock_for_ddl(fenced, mode);
    locked := true;   -- what stands may have changed meanwhile: look again
  END LOOP;
  FOREACH statement IN ARRAY statements LOOP
    IF NOT dry_run THEN
      EXECUTE statement;
    END IF;
    RETURN NEXT statement;
  END LOOP;
END $$;
COMMENT ON FUNCTION fenceguard.add_row_fence(regclass, bool) IS
  'Adds the column fencing_token and the triggers that refuse a token that does not rise; returns the statements.';

-- Takes the triggers, the check and the column away again, and with the column what the rows remember. Returns the
-- statements. Locks the table ACCESS EXCLUSIVE.
CREATE FUNCTION fenceguard.remove_row_fence(fenced regclass, dry_run bool DEFAULT false) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  qualified text;
  statement text;
BEGIN
  PERFORM fenceguard.require_owner(fenced);
  IF NOT EXISTS (SELECT FROM fenceguard.row_fence_trigger AS t WHERE t.relation = fenced) THEN
    RETURN;   -- a column of this name that has no guard is not ours
  END IF;
  IF NOT dry_run THEN
    PERFORM fenceguard.lock_for_ddl(fenced, 'ACCESS EXCLUSIVE');
  END IF;
  SELECT format('%I.%I', n.nspname, c.relname) INTO STRICT qualified
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = fenced;
  FOR statement IN
    SELECT format('DROP TRIGGER %I ON %s', t.name, qualified) FROM fenceguard.row_fence_trigger AS t
      WHERE t.relation = fenced AND NOT t.cloned
    UNION ALL
    SELECT format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS fencing_token_range, DROP COLUMN IF EXISTS fencing_token', qualified)
  LOOP
    IF NOT dry_run THEN
      EXECUTE statement;
    END IF;
    RETURN NEXT statement;
  END LOOP;
END $$;
COMMENT ON FUNCTION fenceguard.remove_row_fence(regclass, bool) IS
  'Takes away what add_row_fence added, the column included; returns the statements.';

SELECT fenceguard.end_migration(7, 'row_fence');
COMMIT;
