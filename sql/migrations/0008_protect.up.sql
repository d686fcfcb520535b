-- 0008: enforcement for writers that skip the library: a row of a protected table may be inserted, updated or
-- deleted only in a transaction that has claimed the resource which the table's template names for it.
--
-- How it works
--   * Proof of a claim is the fence row itself: claimed_xid and claimed_at are this transaction's. Only the
--     SECURITY DEFINER functions can write that row, so there is no setting to forge or to leak through a pooler.
--     claimed_at counts as well, because transaction ids come again in a restored or copied cluster.
--   * The checks are AFTER triggers: they see the row as it was stored, whatever later BEFORE triggers did.
--   * The check functions are STABLE, so they look with the snapshot of the writing statement: a claim made
--     inside that statement (a CTE, a function or a trigger it calls) does not count.
--   * A plain table is checked once per statement, over the transition tables. Row triggers are what
--     PostgreSQL clones to partitions, now and for those attached later, so a partitioned table has those.
--   * The registry is the trigger `fenceguard_key`: its argument is the template and its UPDATE OF list the key's
--     columns. PostgreSQL keeps that list by attribute number: it follows renames, it survives dump and restore,
--     and it refuses to drop or retype a key column. The caller of protect writes no table of this schema.
--   * The trigger functions run as the writer and only read the row's key. What looks at the fence table is
--     require_claims, SECURITY DEFINER, which takes nothing but text.

BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(8, 'protect');

-- The parts of a template: `columns` in order of appearance, and one literal more than there are columns.
-- {name} is a column, spelled as in the catalogue or as an SQL identifier; {{ and }} are braces.
CREATE FUNCTION fenceguard.parse_template(template text, OUT columns text[], OUT literals text[])
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rest text := template;
  literal text := '';
  part text;
BEGIN
  columns := '{}';
  literals := '{}';
  WHILE rest <> '' LOOP
    part := substring(rest FROM '^(?:[^{}]+|\{\{|\}\}|\{[^{}]+\})');
    IF part IS NULL THEN
      RAISE EXCEPTION 'template %: a brace stands alone at %', quote_literal(template), quote_literal(rest)
        USING ERRCODE = '22023', HINT = 'Write {column} for a column, {{ and }} for the characters themselves.';
    END IF;
    rest := substr(rest, length(part) + 1);
    IF part IN ('{{', '}}') THEN
      literal := literal || left(part, 1);
    ELSIF left(part, 1) = '{' THEN
      IF cardinality(columns) > 0 AND literal !~ '^[] !"#$&''()*+,./:;<=>?@[\\^_`{|}~-]' THEN
        RAISE EXCEPTION 'template %: the text between two columns must begin with a punctuation character '
          'other than %%, so that two keys never give one resource', quote_literal(template)
          USING ERRCODE = '22023', HINT = 'For example order/{shop}/{number}.';
      END IF;
      columns := columns || substr(part, 2, length(part) - 2);
      literals := literals || literal;
      literal := '';
    ELSE
      literal := literal || part;
    END IF;
  END LOOP;
  literals := literals || literal;
  IF octet_length(array_to_string(literals, '')) > 512 OR template = '' THEN
    RAISE EXCEPTION 'template: its text must have 1 to 512 bytes' USING ERRCODE = '22023';
  END IF;
END $$;

-- The resource's name for one key. With one column the value stands as it is. With several, in each value `%` and
-- every character that begins the text between two columns is written % and two hex digits, so that the first
-- such character after a value always ends it.
CREATE FUNCTION fenceguard.resource_name(literals text[], key text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := literals[1];
  value text;
BEGIN
  FOR i IN 1 .. cardinality(key) LOOP
    value := key[i];
    IF cardinality(key) > 1 THEN
      value := replace(value, '%', '%25');
      FOR j IN 2 .. cardinality(key) LOOP
        value := replace(value, left(literals[j], 1), '%' || upper(to_hex(ascii(literals[j]))));
      END LOOP;
    END IF;
    name := name || value || literals[i + 1];
  END LOOP;
  RETURN name;
END $$;

-- Raises TF002 unless this transaction has claimed, before the statement that writes, the resource of every key.
--   relation  the table, for the message
--   literals  as parse_template gives them
--   keys      one row of text per key; a NULL in it is refused
-- Reads fence by primary key; locks nothing.
CREATE FUNCTION fenceguard.require_claims(relation oid, literals text[], keys text[]) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  width int := cardinality(literals) - 1;
  names text[] := '{}';
  key text[] := '{}';
  name text;
BEGIN
  IF array_position(keys, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'unguarded write to %: a key column is null', relation::regclass
      USING ERRCODE = 'TF002', HINT = 'A row without a key names no resource; make the column NOT NULL.';
  END IF;
  IF width = 0 THEN
    names := literals;
  ELSIF width = 1 THEN
    FOREACH name IN ARRAY keys LOOP
      names := names || (literals[1] || name || literals[2]);
    END LOOP;
  ELSE
    FOREACH name IN ARRAY keys LOOP
      key := key || name;
      CONTINUE WHEN cardinality(key) < width;
      names := names || fenceguard.resource_name(literals, key);
      key := '{}';
    END LOOP;
  END IF;
  FOREACH name IN ARRAY names LOOP
    PERFORM FROM fenceguard.fence AS f
      WHERE f.resource = name AND f.claimed_xid = pg_current_xact_id_if_assigned() AND f.claimed_at = now();
    CONTINUE WHEN FOUND;
    RAISE EXCEPTION 'unguarded write to %: this transaction has not claimed %', relation::regclass, name
      USING ERRCODE = 'TF002', HINT = CASE WHEN octet_length(name) > 512
        THEN 'The name is longer than 512 bytes, so nobody can claim it.'
        ELSE format('Call fenceguard.claim(%L, token, holder) in this transaction, in a statement before the '
                    'one that writes.', name) END;
  END LOOP;
END $$;

-- The registry's trigger. It does nothing: its argument and its column list are what counts.
CREATE FUNCTION fenceguard.protect_key() RETURNS trigger
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN NULL;
END $$;

CREATE FUNCTION fenceguard.refuse_truncate() RETURNS trigger
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'unguarded write to %: a protected table is not truncated', TG_RELID::regclass
    USING ERRCODE = 'TF002', HINT = 'DELETE the rows whose resources were claimed, or call fenceguard.unprotect.';
END $$;

-- One statement's rows on a plain table. Arguments: the template, then its literals.
-- One or two rows are read as JSON, in statements whose plans are kept; more are read by one query that is planned each
-- time, which costs about 0.2 ms and is then the cheapest per row.
CREATE FUNCTION fenceguard.check_statement() RETURNS trigger
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  literals text[] := TG_ARGV[1:];
  key_columns text[];
  row_values jsonb;
  sample jsonb[];
  many bool;
  select_list text;
  text_list text;
  keys text[] := '{}';
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT array_agg(to_jsonb(n)) INTO sample FROM (SELECT * FROM new_rows LIMIT 3) AS n;
  ELSE
    SELECT array_agg(to_jsonb(o)) INTO sample FROM (SELECT * FROM old_rows LIMIT 3) AS o;
  END IF;
  IF sample IS NULL THEN
    RETURN NULL;
  END IF;
  many := cardinality(sample) = 3;
  IF NOT has_schema_privilege('fenceguard', 'USAGE') THEN
    RAISE EXCEPTION 'unguarded write to %: role % has no USAGE on schema fenceguard', TG_RELID::regclass, current_user
      USING ERRCODE = 'TF002', HINT = 'A role that writes a protected table needs the application role''s rights.';
  ELSIF NOT has_function_privilege('fenceguard.require_claims(oid, text[], text[])', 'EXECUTE') THEN
    RAISE EXCEPTION 'unguarded write to %: role % may not execute fenceguard.require_claims', TG_RELID::regclass,
      current_user
      USING ERRCODE = 'TF002', HINT = 'A role that writes a protected table needs the application role''s rights.';
  END IF;
  SELECT coalesce(array_agg(a.attname ORDER BY k.position), '{}') INTO key_columns
    FROM pg_trigger AS t
    CROSS JOIN unnest(t.tgattr::int2[]) WITH ORDINALITY AS k(attnum, position)
    JOIN pg_attribute AS a ON a.attrelid = t.tgrelid AND a.attnum = k.attnum
    WHERE t.tgrelid = TG_RELID AND t.tgname = 'fenceguard_key';
  IF cardinality(key_columns) <> cardinality(literals) - 1 THEN
    RAISE EXCEPTION 'unguarded write to %: its trigger fenceguard_key is missing or was changed', TG_RELID::regclass
      USING ERRCODE = 'TF002', HINT = 'Call fenceguard.protect again.';
  END IF;
  IF many AND cardinality(key_columns) > 0 THEN
    SELECT string_agg(quote_ident(c), ', ' ORDER BY i), string_agg(quote_ident(c) || '::text', ', ' ORDER BY i)
      INTO select_list, text_list FROM unnest(key_columns) WITH ORDINALITY AS k(c, i);
    EXECUTE CASE TG_OP
      WHEN 'INSERT' THEN format('SELECT array_agg(ARRAY[%s]) FROM (SELECT DISTINCT %s FROM new_rows) AS k',
                                text_list, select_list)
      WHEN 'DELETE' THEN format('SELECT array_agg(ARRAY[%s]) FROM (SELECT DISTINCT %s FROM old_rows) AS k',
                                text_list, select_list)
      ELSE format('SELECT array_agg(ARRAY[%s]) FROM (SELECT %s FROM old_rows UNION SELECT %2$s FROM new_rows) AS k',
                  text_list, select_list)
      END INTO keys;
  ELSE
    IF TG_OP = 'UPDATE' THEN
      SELECT sample || array_agg(to_jsonb(n)) INTO sample FROM (SELECT * FROM new_rows LIMIT 2) AS n;
    END IF;
    FOREACH row_values IN ARRAY sample LOOP
      FOR i IN 1 .. cardinality(key_columns) LOOP
        keys := keys || (row_values ->> key_columns[i]);
      END LOOP;
    END LOOP;
  END IF;
  PERFORM fenceguard.require_claims(TG_RELID, literals, keys);
  RETURN NULL;
END $$;

-- One row of a partition. Arguments: the template, then its literals.
CREATE FUNCTION fenceguard.check_row() RETURNS trigger
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  literals text[] := TG_ARGV[1:];
  key_columns text[];
  old_values jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
  new_values jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
  old_keys text[] := '{}';
  new_keys text[] := '{}';
BEGIN
  IF NOT has_schema_privilege('fenceguard', 'USAGE') THEN
    RAISE EXCEPTION 'unguarded write to %: role % has no USAGE on schema fenceguard', TG_RELID::regclass, current_user
      USING ERRCODE = 'TF002', HINT = 'A role that writes a protected table needs the application role''s rights.';
  ELSIF NOT has_function_privilege('fenceguard.require_claims(oid, text[], text[])', 'EXECUTE') THEN
    RAISE EXCEPTION 'unguarded write to %: role % may not execute fenceguard.require_claims', TG_RELID::regclass,
      current_user
      USING ERRCODE = 'TF002', HINT = 'A role that writes a protected table needs the application role''s rights.';
  END IF;
  SELECT coalesce(array_agg(a.attname ORDER BY k.position), '{}') INTO key_columns
    FROM pg_trigger AS t
    CROSS JOIN unnest(t.tgattr::int2[]) WITH ORDINALITY AS k(attnum, position)
    JOIN pg_attribute AS a ON a.attrelid = t.tgrelid AND a.attnum = k.attnum
    WHERE t.tgrelid = pg_partition_root(TG_RELID) AND t.tgname = 'fenceguard_key';
  IF cardinality(key_columns) <> cardinality(literals) - 1 THEN
    RAISE EXCEPTION 'unguarded write to %: its trigger fenceguard_key is missing or was changed', TG_RELID::regclass
      USING ERRCODE = 'TF002', HINT = 'Call fenceguard.protect again.';
  END IF;
  FOR i IN 1 .. cardinality(key_columns) LOOP
    old_keys := old_keys || (old_values ->> key_columns[i]);
    new_keys := new_keys || (new_values ->> key_columns[i]);
  END LOOP;
  IF TG_OP <> 'INSERT' THEN
    PERFORM fenceguard.require_claims(TG_RELID, literals, old_keys);
  END IF;
  IF TG_OP = 'INSERT' OR (TG_OP = 'UPDATE' AND new_keys IS DISTINCT FROM old_keys) THEN
    PERFORM fenceguard.require_claims(TG_RELID, literals, new_keys);
  END IF;
  RETURN NULL;
END $$;

-- The triggers that protect `protected` by this template, each in exactly the words of pg_get_triggerdef, so that what
-- stands can be compared with what should. Raises 22023 with the reason where the table cannot be protected so.
CREATE FUNCTION fenceguard.protection_triggers(protected regclass, template text)
RETURNS TABLE (relation regclass, name text, definition text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  target pg_class;
  parts record;
  columns text[] := '{}';
  spelled text;
  found_column record;
  arguments text;
BEGIN
  SELECT * INTO STRICT target FROM pg_class WHERE oid = protected;
  IF target.relkind NOT IN ('r', 'p') THEN
    RAISE EXCEPTION '% is not a table: only plain and partitioned tables can be protected', protected
      USING ERRCODE = '22023', HINT = 'Protect the tables behind a view, and a foreign table where it is stored.';
  ELSIF target.relispartition THEN
    RAISE EXCEPTION '% is a partition: protect %', protected, pg_partition_root(protected) USING ERRCODE = '22023';
  ELSIF target.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE protected IN (inhparent, inhrelid)) THEN
    RAISE EXCEPTION '% takes part in inheritance: a write to the parent changes rows of its children without firing '
      'their triggers', protected USING ERRCODE = '22023', HINT = 'Use declarative partitioning or separate tables.';
  ELSIF target.relnamespace = 'fenceguard'::regnamespace OR target.oid < 16384 THEN
    RAISE EXCEPTION '% belongs to the system', protected USING ERRCODE = '22023';
  ELSIF EXISTS (SELECT FROM pg_partition_tree(protected) AS p JOIN pg_class AS c ON c.oid = p.relid
                WHERE c.relkind = 'f') THEN
    RAISE EXCEPTION '% has a foreign table as a partition, which can be written elsewhere', protected
      USING ERRCODE = '22023';
  END IF;

  IF template IS NULL THEN
    RAISE EXCEPTION 'template must not be null' USING ERRCODE = '22023';
  END IF;
  SELECT * INTO STRICT parts FROM fenceguard.parse_template(template);
  FOREACH spelled IN ARRAY parts.columns LOOP
    SELECT a.attname::text AS name, coalesce(nullif(y.typbasetype, 0), y.oid) AS type, y.typtype, c.collisdeterministic
      INTO found_column
      FROM pg_attribute AS a
      JOIN pg_type AS y ON y.oid = a.atttypid
      LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
      WHERE a.attrelid = protected AND a.attnum > 0 AND NOT a.attisdropped
        AND (spelled IN (a.attname, '"' || replace(a.attname, '"', '""') || '"')
             OR spelled ~ '^[A-Za-z_][A-Za-z0-9_$]*$' AND a.attname = lower(spelled))
      ORDER BY a.attname = spelled DESC LIMIT 1;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'template %: % has no column %', quote_literal(template), protected, quote_ident(spelled)
        USING ERRCODE = '22023';
    END IF;
    -- a domain over a domain: down to the type that is stored
    WHILE (SELECT y.typtype FROM pg_type AS y WHERE y.oid = found_column.type) = 'd' LOOP
      SELECT y.typbasetype INTO found_column.type FROM pg_type AS y WHERE y.oid = found_column.type;
    END LOOP;
    IF found_column.name = ANY (columns) THEN
      RAISE EXCEPTION 'template %: column % stands twice', quote_literal(template), quote_ident(found_column.name)
        USING ERRCODE = '22023';
    ELSIF found_column.type <> ALL (ARRAY['int2', 'int4', 'int8', 'text', 'varchar', 'uuid']::regtype[]) THEN
      RAISE EXCEPTION 'template %: column % is of type %; a key is an integer, text, varchar or uuid',
        quote_literal(template), quote_ident(found_column.name), found_column.type::regtype
        USING ERRCODE = '22023', HINT = 'The text of other types depends on settings, or one value has several texts: '
          'two holders could claim two names for one row.';
    ELSIF NOT found_column.collisdeterministic THEN
      RAISE EXCEPTION 'template %: column % has a nondeterministic collation, so one key has several texts',
        quote_literal(template), quote_ident(found_column.name) USING ERRCODE = '22023';
    END IF;
    columns := columns || found_column.name;
  END LOOP;

  SELECT quote_literal(template) || string_agg(', ' || quote_literal(l), '' ORDER BY i) INTO arguments
    FROM unnest(parts.literals) WITH ORDINALITY AS x(l, i);
  RETURN QUERY
    SELECT n.oid::regclass, w.name,
           format('CREATE TRIGGER %s %s ON %I.%I%s FOR EACH %s EXECUTE FUNCTION fenceguard.%s(%s)', w.name, w.event,
                  s.nspname, n.relname, w.referencing, w.level, w.function, w.arguments)
      FROM pg_class AS n
      JOIN pg_namespace AS s ON s.oid = n.relnamespace
      CROSS JOIN LATERAL (VALUES
        ('r p', 'fenceguard_key', 'AFTER UPDATE' || coalesce(' OF ' ||
           (SELECT string_agg(quote_ident(c), ', ' ORDER BY i) FROM unnest(columns) WITH ORDINALITY AS x(c, i)), ''),
         '', 'STATEMENT', 'protect_key', arguments),
        ('r', 'fenceguard_insert', 'AFTER INSERT', ' REFERENCING NEW TABLE AS new_rows',
         'STATEMENT', 'check_statement', arguments),
        ('r', 'fenceguard_update', 'AFTER UPDATE', ' REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows',
         'STATEMENT', 'check_statement', arguments),
        ('r', 'fenceguard_delete', 'AFTER DELETE', ' REFERENCING OLD TABLE AS old_rows',
         'STATEMENT', 'check_statement', arguments),
        ('p', 'fenceguard_row', 'AFTER INSERT OR DELETE OR UPDATE', '', 'ROW', 'check_row', arguments),
        ('r p', 'fenceguard_truncate', 'BEFORE TRUNCATE', '', 'STATEMENT', 'refuse_truncate', '')
      ) AS w(kinds, name, event, referencing, level, function, arguments)
      WHERE n.oid = protected AND position(n.relkind IN w.kinds) > 0
         -- a TRUNCATE trigger is not cloned to partitions: each gets its own
         OR w.name = 'fenceguard_truncate' AND target.relkind = 'p'
            AND n.oid IN (SELECT p.relid FROM pg_partition_tree(protected) AS p);
END $$;

-- The protection triggers that stand on a table and its partitions, clones included.
CREATE VIEW fenceguard.protection_trigger AS
  SELECT t.oid, t.tgrelid::regclass AS relation, t.tgname::text AS name, pg_get_triggerdef(t.oid) AS definition,
         t.tgenabled IN ('O', 'A') AS enabled, t.tgparentid <> 0 AS cloned,
         format('%I.%I', n.nspname, c.relname) AS qualified_relation
    FROM pg_trigger AS t
    JOIN pg_proc AS p ON p.oid = t.tgfoid
    JOIN pg_class AS c ON c.oid = t.tgrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE NOT t.tgisinternal AND p.pronamespace = 'fenceguard'::regnamespace
      AND p.proname IN ('protect_key', 'check_statement', 'check_row', 'refuse_truncate');

-- Protects a table: from now on a row of it is written only by a transaction that has claimed the row's resource.
--   protected  a plain or partitioned table of the caller's (with its partitions)
--   template   the resource's name, with {column} for a column: 'account/{id}', 'order/{shop}/{number}'
--   dry_run    only return the statements
-- Returns the statements, in order; none where the table is protected so already. Calling it with another template
-- changes the protection; calling it again adds what partitions lack and enables what was disabled.
-- Raises 22023 for what cannot be protected, 42501 for a table that is not the caller's, 55P03 where the lock could not
-- be had. Locks the table SHARE ROW EXCLUSIVE, ACCESS EXCLUSIVE where a trigger is dropped, to the end of the transaction.
CREATE FUNCTION fenceguard.protect(protected regclass, template text, dry_run bool DEFAULT false) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  statements text[];
  statement text;
  locked bool := false;
BEGIN
  PERFORM fenceguard.require_owner(protected);
  LOOP
    statements := ARRAY(
      WITH wanted AS (SELECT * FROM fenceguard.protection_triggers(protected, template)),
      standing AS (
        SELECT * FROM fenceguard.protection_trigger AS t
          WHERE t.relation = protected OR t.relation IN (SELECT p.relid FROM pg_partition_tree(protected) AS p)),
      step AS (
        SELECT 1 AS phase, s.relation, s.name, format('DROP TRIGGER %I ON %s', s.name, s.qualified_relation) AS ddl
          FROM standing AS s LEFT JOIN wanted AS w USING (relation, name)
          WHERE NOT s.cloned AND s.definition IS DISTINCT FROM w.definition
        UNION ALL
        SELECT 2, w.relation, w.name, w.definition
          FROM wanted AS w LEFT JOIN standing AS s USING (relation, name)
          WHERE w.definition IS DISTINCT FROM s.definition
        UNION ALL
        SELECT 3, s.relation, s.name, format('ALTER TABLE %s ENABLE TRIGGER %I', s.qualified_relation, s.name)
          FROM standing AS s LEFT JOIN wanted AS w USING (relation, name)
          WHERE NOT s.enabled AND (s.cloned OR s.definition = w.definition))
      SELECT ddl FROM step ORDER BY phase, relation::text, name);
    EXIT WHEN dry_run OR locked OR statements = '{}';
    PERFORM fenceguard.lock_for_ddl(protected, CASE WHEN array_to_string(statements, ';') ~ '(^|;)(DROP|ALTER)'
                                               THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END);
    locked := true;   -- what stands may have changed meanwhile: look again
  END LOOP;
  FOREACH statement IN ARRAY statements LOOP
    IF NOT dry_run THEN
      EXECUTE statement;
    END IF;
    RETURN NEXT statement;
  END LOOP;
END $$;

-- Takes the protection away again; returns the statements, none where the table has none.
-- Locks the table ACCESS EXCLUSIVE. Raises 42501 and 55P03 as protect does.
CREATE FUNCTION fenceguard.unprotect(protected regclass, dry_run bool DEFAULT false) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  statement text;
BEGIN
  PERFORM fenceguard.require_owner(protected);
  IF NOT dry_run AND EXISTS (SELECT FROM fenceguard.protection_trigger AS t WHERE t.relation = protected) THEN
    PERFORM fenceguard.lock_for_ddl(protected, 'ACCESS EXCLUSIVE');
  END IF;
  FOR statement IN
    SELECT format('DROP TRIGGER %I ON %s', t.name, t.qualified_relation) FROM fenceguard.protection_trigger AS t
      WHERE NOT t.cloned
        AND (t.relation = protected OR t.relation IN (SELECT p.relid FROM pg_partition_tree(protected) AS p))
      ORDER BY t.relation::text, t.name LOOP
    IF NOT dry_run THEN
      EXECUTE statement;
    END IF;
    RETURN NEXT statement;
  END LOOP;
END $$;

-- What is protected, read from the catalogue.
--   template   as protect was given it
--   columns    the key's columns, by what they are called now
--   mechanism  'statement' (transition tables) or 'row' (partitioned tables)
--   enabled    every trigger is there and enabled, on every partition too
CREATE VIEW fenceguard.protected_tables AS
  SELECT k.tgrelid::regclass AS relation,
         convert_from(substring(k.tgargs FROM 1 FOR position('\x00'::bytea IN k.tgargs) - 1), getdatabaseencoding())
           AS template,
         ARRAY(SELECT a.attname::text FROM unnest(k.tgattr::int2[]) WITH ORDINALITY AS x(attnum, i)
                 JOIN pg_attribute AS a ON a.attrelid = k.tgrelid AND a.attnum = x.attnum ORDER BY x.i) AS columns,
         CASE c.relkind WHEN 'p' THEN 'row' ELSE 'statement' END AS mechanism,
         NOT EXISTS (
           SELECT FROM (SELECT k.tgrelid AS relid UNION SELECT p.relid FROM pg_partition_tree(k.tgrelid) AS p) AS r
             CROSS JOIN unnest(CASE WHEN c.relkind = 'p' THEN '{fenceguard_row,fenceguard_truncate}'
               ELSE '{fenceguard_insert,fenceguard_update,fenceguard_delete,fenceguard_truncate}' END::text[]) AS w(name)
             WHERE NOT EXISTS (SELECT FROM fenceguard.protection_trigger AS t
                               WHERE t.relation = r.relid AND t.name = w.name AND t.enabled)) AS enabled
    FROM pg_trigger AS k
    JOIN pg_proc AS f ON f.oid = k.tgfoid
    JOIN pg_class AS c ON c.oid = k.tgrelid
    WHERE f.pronamespace = 'fenceguard'::regnamespace AND f.proname = 'protect_key';

SELECT fenceguard.end_migration(8, 'protect');
COMMIT;
