-- 0008: enforcement for writers that skip the library: a row of a protected table may be inserted, updated or
-- deleted only in a transaction that has claimed the resource which the table's template names for it.
--
-- How it works
--   * Proof of a claim is the fence row itself: claimed_xid and claimed_at are this transaction's. Only SECURITY DEFINER
--     functions can write that row, so there is no setting to forge or to leak through a pooler. claimed_at counts
--     as well, because transaction ids come again in a restored or copied cluster.
--   * The checks are AFTER triggers: they see the row as it was stored, whatever later BEFORE triggers made of it.
--   * The check functions are STABLE, so they look with the snapshot of the writing statement: a claim made inside
--     that statement (by a CTE, a function or a trigger it calls) does not count.
--   * A plain table is checked once per statement, over a transition table; an UPDATE that changes a key, for the rows
--     whose key it changes. Row triggers are what PostgreSQL clones to partitions, now and when one is attached
--     later, so a partitioned table has those.
--   * The registry is the triggers' arguments; the caller of protect writes no table of this schema. The arguments
--     name the key's columns twice, by name and by attribute number, and a check refuses to read another column
--     than the one that was meant. fenceguard_key binds them a third time: PostgreSQL keeps its UPDATE OF list by
--     attribute number, through renames, dump and restore, and refuses to drop or retype a column on it.
--   * The check functions run with our rights on tables of others, so no code of theirs may run in them. That is why
--     they turn a key into text by format('%s'), which calls the type's output function (C code, which only a
--     superuser can define), and not by ::text or to_jsonb(), which call user-defined casts.
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

-- The arguments of a check trigger, n being the number of key columns:
--   0             the template
--   1 .. n+1      its literals
--   n+2 .. 2n+1   the columns' names
--   2n+2 .. 3n+1  their attribute numbers

CREATE FUNCTION fenceguard.refuse_write(relation oid, resource text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF resource IS NULL THEN
    RAISE EXCEPTION 'unguarded write to %: a key column is null', relation::regclass
      USING ERRCODE = 'TF002', HINT = 'A row without a key names no resource. Make the column NOT NULL.';
  ELSIF octet_length(resource) > 512 THEN
    RAISE EXCEPTION 'unguarded write to %: the name of its resource has more than 512 bytes', relation::regclass
      USING ERRCODE = 'TF002', DETAIL = resource, HINT = 'Nobody can claim it. Choose a shorter template or key.';
  END IF;
  RAISE EXCEPTION 'unguarded write to %: this transaction has not claimed %', relation::regclass, resource
    USING ERRCODE = 'TF002', HINT = format('Call fenceguard.claim(%L, token, holder) in this transaction, in a '
      'statement before the one that writes.', resource);
END $$;

-- Refuses where a column is not where the arguments say, unless fenceguard_key binds the same: after a dump and restore numbers
-- close up over dropped columns, and that trigger was restored with them.
CREATE FUNCTION fenceguard.require_columns(relation oid, names text[], numbers int2[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF names IS DISTINCT FROM ARRAY(
       SELECT a.attname::text FROM unnest(numbers) WITH ORDINALITY AS n(attnum, position)
         JOIN pg_attribute AS a ON a.attrelid = relation AND a.attnum = n.attnum AND NOT a.attisdropped
         ORDER BY n.position)
     AND names IS DISTINCT FROM (
       SELECT array_agg(a.attname::text ORDER BY k.position)
         FROM pg_trigger AS t
         CROSS JOIN unnest(t.tgattr::int2[]) WITH ORDINALITY AS k(attnum, position)
         JOIN pg_attribute AS a ON a.attrelid = t.tgrelid AND a.attnum = k.attnum
         WHERE t.tgrelid = relation AND t.tgname = 'fenceguard_key') THEN
    RAISE EXCEPTION 'unguarded write to %: its key columns were renamed, dropped or replaced since it was protected',
      relation::regclass
      USING ERRCODE = 'TF002', HINT = 'Call fenceguard.protect again, with a template for the columns as they are now.';
  END IF;
END $$;

-- SQL that makes texts of these columns of a row, NULL of NULL.
CREATE FUNCTION fenceguard.key_texts(source text, names text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(string_agg(format('CASE WHEN %1$s.%2$I IS NOT NULL THEN format(''%%s'', %1$s.%2$I) END', source, n.name), ', '
                             ORDER BY n.position), '')
    FROM unnest(names) WITH ORDINALITY AS n(name, position)
$$;

-- SQL that gives the name of the column at `place` of a table: ........pg.dropped.N........ where it was dropped, NULL where the
-- table has fewer. By a function of the catalogue, which costs no query; before 14 that raises where there is no such column.
CREATE FUNCTION fenceguard.column_name(relation text, place text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(CASE WHEN current_setting('server_version_num')::int >= 140000
                     THEN '(pg_identify_object_as_address(''pg_class''::regclass, %s, %s)).object_names[3]'
                     ELSE '(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = %s AND a.attnum = %s)' END, relation, place)
$$;

-- The check functions read the key by statements whose plans are kept, where it is among the first columns and none before it was
-- dropped: an alias list names columns by position, from "~1" on, with NULLs behind those of a table that has fewer. (Those behind
-- the list keep their own names, which may be those of variables.) Elsewhere they are planned anew, by the columns' names. Not by
-- a smaller position where columns were dropped: a kept plan over OLD and NEW does not notice that.

-- The check functions of a plain table, for the rows of one statement: check_column_1 to check_column_16 where the key is that one
-- column, check_statement for other keys. They differ in the quick look alone, which is all that a statement pays that writes one
-- row: one expression, because PostgreSQL prepares each anew in every transaction.
DO $migration$
DECLARE
  definition constant text := $function$
CREATE FUNCTION fenceguard.<name>() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_variable
BEGIN
  -- Under a trigger without a transition table, made by hand, this would be a relation of the writer's: his code, our rights.
  IF pg_my_temp_schema() <> 0 THEN
    IF to_regclass('pg_temp.fenceguard_rows') IS NOT NULL THEN
      RAISE EXCEPTION 'unguarded write to %: a temporary relation bears the name fenceguard_rows', TG_RELID::regclass
        USING ERRCODE = 'TF002', HINT = 'Drop it. The check keeps this name for the rows that a statement has written.';
    END IF;
  END IF;
  IF <quick> THEN
    RETURN NULL;
  END IF;

  DECLARE
    width int := (TG_NARGS - 2) / 3;
    key text[] := TG_ARGV[width + 2 : 2 * width + 1];
    name text;
    refused bool;
  BEGIN
    PERFORM fenceguard.require_columns(TG_RELID, key, TG_ARGV[2 * width + 2 : 3 * width + 1]::int2[]);
    -- The look-up is a scalar subquery, made by primary key for each name, so that no plan joins with the whole of fence. DISTINCT
    -- takes the type's own operators: only a superuser can define operator classes.
    EXECUTE format(
        'SELECT t.name, true FROM (SELECT %s FROM (SELECT DISTINCT %s FROM fenceguard_rows) AS d OFFSET 0) AS t(name) '
          'WHERE <claimed> IS NOT TRUE LIMIT 1',
        format(CASE WHEN width = 1 THEN '$1[1] || %s || $1[2]' ELSE 'fenceguard.resource_name($1, ARRAY[%s]::text[])' END,
               fenceguard.key_texts('d', key)),
        coalesce((SELECT string_agg(quote_ident(c), ', ') FROM unnest(key) AS c), 'NULL'))
      INTO name, refused USING TG_ARGV[1 : width + 1];
    IF refused THEN
      PERFORM fenceguard.refuse_write(TG_RELID, name);
    END IF;
    RETURN NULL;
  END;
END $body$ $function$;
  claimed constant text := '(SELECT f.claimed_xid = pg_current_xact_id_if_assigned() AND f.claimed_at = now() '
    'FROM fenceguard.fence AS f WHERE f.resource = t.name)';
  one_row constant text := '(SELECT count(*) = 1 AND bool_and(<claimed>) FROM (SELECT <resource> FROM '
    '(SELECT *%s FROM fenceguard_rows) AS r(%s) LIMIT 2) AS t(name))';
  text_of constant text := 'CASE WHEN "~%1$s" IS NOT NULL THEN format(''%%s'', "~%1$s") END';
  dropped constant text := '''........pg.dropped.%''';
  names text;
  quick text;
BEGIN
  FOR place IN 1 .. 16 LOOP
    names := (SELECT string_agg(format('"~%s"', i), ', ') FROM generate_series(1, place) AS i);
    quick := replace(format(one_row, repeat(', NULL', place - 1), names), '<resource>', 'TG_ARGV[1] || ' || format(text_of, place) || ' || TG_ARGV[2]')
      || ' AND ' || fenceguard.column_name('TG_RELID', place::text) || ' = TG_ARGV[3]'
      || coalesce((SELECT string_agg(' AND ' || fenceguard.column_name('TG_RELID', i::text) || ' NOT LIKE ' || dropped, '')
                     FROM generate_series(1, place - 1) AS i), '');
    EXECUTE replace(replace(replace(definition, '<name>', 'check_column_' || place), '<quick>', quick), '<claimed>', claimed);
  END LOOP;
  -- Any number of columns among the first eight: their places are the last third of the arguments, their names the third before.
  names := (SELECT string_agg(format('"~%s"', i), ', ') FROM generate_series(1, 8) AS i);
  quick := 'NOT EXISTS (SELECT FROM unnest(TG_ARGV[(TG_NARGS - 2) / 3 + 2 : (TG_NARGS - 2) / 3 * 2 + 1], '
                                          'TG_ARGV[(TG_NARGS - 2) / 3 * 2 + 2 :]) AS k(name, place) '
      'WHERE k.place::int > 8 OR ' || fenceguard.column_name('TG_RELID', 'k.place::int') || ' IS DISTINCT FROM k.name OR EXISTS ('
        'SELECT FROM generate_series(1, k.place::int - 1) AS i WHERE ' || fenceguard.column_name('TG_RELID', 'i') || ' LIKE ' || dropped || ')) AND '
    || replace(format(one_row, repeat(', NULL', 7), names), '<resource>',
      'fenceguard.resource_name(TG_ARGV[1 : (TG_NARGS + 1) / 3], ARRAY('
        'SELECT CASE k.place ' || (SELECT string_agg(format('WHEN ''%s'' THEN ', i) || format(text_of, i), ' ')
                                     FROM generate_series(1, 8) AS i) || ' END '
          'FROM unnest(TG_ARGV[(TG_NARGS - 2) / 3 * 2 + 2 :]) WITH ORDINALITY AS k(place, i) ORDER BY k.i))');
  EXECUTE replace(replace(replace(definition, '<name>', 'check_statement'), '<quick>', quick), '<claimed>', claimed);
END $migration$;

-- One row: of a partition, or of a plain table where its key has changed. A partition can have its columns in another order
-- than its root, whose numbers the arguments give.
DO $migration$
DECLARE
  definition constant text := $function$
CREATE FUNCTION fenceguard.check_row() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $body$
#variable_conflict use_variable
DECLARE
  width int := (TG_NARGS - 2) / 3;
  root oid := coalesce(pg_partition_root(TG_RELID), TG_RELID);
  in_place bool := true;
  in_front bool := true;
  place int;
  value_before text;
  value_after text;
  before text[] := '{}';
  after text[] := '{}';
  name text;
BEGIN
  FOR i IN width + 2 .. 2 * width + 1 LOOP
    place := TG_ARGV[i + width];
    in_place := in_place AND TG_ARGV[i] = <name in root>;
    in_front := in_front AND in_place AND (root = TG_RELID OR TG_ARGV[i] = <name>);
    in_front := in_front AND place <= 8;
    CONTINUE WHEN in_front IS NOT TRUE;
    FOR earlier IN 1 .. place - 1 LOOP
      in_front := in_front AND <name of an earlier> NOT LIKE '........pg.dropped.%';
    END LOOP;
    CONTINUE WHEN in_front IS NOT TRUE;
    SELECT
      CASE
        WHEN place = 1 AND o."~1" IS NOT NULL THEN format('%s', o."~1")
        WHEN place = 2 AND o."~2" IS NOT NULL THEN format('%s', o."~2")
        WHEN place = 3 AND o."~3" IS NOT NULL THEN format('%s', o."~3")
        WHEN place = 4 AND o."~4" IS NOT NULL THEN format('%s', o."~4")
        WHEN place = 5 AND o."~5" IS NOT NULL THEN format('%s', o."~5")
        WHEN place = 6 AND o."~6" IS NOT NULL THEN format('%s', o."~6")
        WHEN place = 7 AND o."~7" IS NOT NULL THEN format('%s', o."~7")
        WHEN place = 8 AND o."~8" IS NOT NULL THEN format('%s', o."~8") END,
      CASE
        WHEN place = 1 AND n."~1" IS NOT NULL THEN format('%s', n."~1")
        WHEN place = 2 AND n."~2" IS NOT NULL THEN format('%s', n."~2")
        WHEN place = 3 AND n."~3" IS NOT NULL THEN format('%s', n."~3")
        WHEN place = 4 AND n."~4" IS NOT NULL THEN format('%s', n."~4")
        WHEN place = 5 AND n."~5" IS NOT NULL THEN format('%s', n."~5")
        WHEN place = 6 AND n."~6" IS NOT NULL THEN format('%s', n."~6")
        WHEN place = 7 AND n."~7" IS NOT NULL THEN format('%s', n."~7")
        WHEN place = 8 AND n."~8" IS NOT NULL THEN format('%s', n."~8") END
      INTO value_before, value_after
      FROM (SELECT OLD.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS o("~1", "~2", "~3", "~4", "~5", "~6", "~7", "~8"),
        (SELECT NEW.*, NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS n("~1", "~2", "~3", "~4", "~5", "~6", "~7", "~8");
    before := before || value_before;
    after := after || value_after;
  END LOOP;
  IF in_front IS NOT TRUE THEN
    before := TG_ARGV[width + 2 : 2 * width + 1];
    IF in_place IS NOT TRUE THEN
      PERFORM fenceguard.require_columns(root, before, TG_ARGV[2 * width + 2 : 3 * width + 1]::int2[]);
    END IF;
    name := format('SELECT ARRAY[%s]::text[]', fenceguard.key_texts('($1)', before));
    EXECUTE name INTO before USING OLD;
    EXECUTE name INTO after USING NEW;
  END IF;

  IF TG_OP <> 'INSERT' THEN
    IF width = 1 THEN
      name := TG_ARGV[1] || before[1] || TG_ARGV[2];
    ELSE
      name := fenceguard.resource_name(TG_ARGV[1 : width + 1], before);
    END IF;
    PERFORM FROM fenceguard.fence AS f
      WHERE f.resource = name AND f.claimed_xid = pg_current_xact_id_if_assigned() AND f.claimed_at = now();
    IF NOT FOUND THEN
      PERFORM fenceguard.refuse_write(TG_RELID, name);
    END IF;
  END IF;
  IF TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND after IS DISTINCT FROM before THEN
    IF width = 1 THEN
      name := TG_ARGV[1] || after[1] || TG_ARGV[2];
    ELSE
      name := fenceguard.resource_name(TG_ARGV[1 : width + 1], after);
    END IF;
    PERFORM FROM fenceguard.fence AS f
      WHERE f.resource = name AND f.claimed_xid = pg_current_xact_id_if_assigned() AND f.claimed_at = now();
    IF NOT FOUND THEN
      PERFORM fenceguard.refuse_write(TG_RELID, name);
    END IF;
  END IF;
  RETURN NULL;
END $body$ $function$;
BEGIN
  EXECUTE replace(replace(replace(definition, '<name in root>', fenceguard.column_name('root', 'place')),
                          '<name>', fenceguard.column_name('TG_RELID', 'place')),
                  '<name of an earlier>', fenceguard.column_name('TG_RELID', 'earlier'));
END $migration$;

-- Binds the key's columns; what counts is its arguments and its column list.
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
  numbers int2[] := '{}';
  arguments text;
  column_list text;
  key_changes text;
  check_rows text;
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
    SELECT a.attname::text AS name, a.attnum, a.atttypid AS type, c.collisdeterministic
      INTO found_column
      FROM pg_attribute AS a
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
    numbers := numbers || found_column.attnum;
  END LOOP;

  SELECT string_agg(quote_literal(x.argument), ', ' ORDER BY x.part, x.i) INTO arguments
    FROM (SELECT 0 AS part, 1::bigint AS i, template AS argument
          UNION ALL SELECT 1, l.i, l.literal FROM unnest(parts.literals) WITH ORDINALITY AS l(literal, i)
          UNION ALL SELECT 2, c.i, c.name FROM unnest(columns) WITH ORDINALITY AS c(name, i)
          UNION ALL SELECT 3, n.i, n.attnum::text FROM unnest(numbers) WITH ORDINALITY AS n(attnum, i)) AS x;
  SELECT string_agg(quote_ident(c.name), ', ' ORDER BY c.i),
         string_agg(format('old.%I IS DISTINCT FROM new.%1$I', c.name), ' OR ' ORDER BY c.i)
    INTO column_list, key_changes FROM unnest(columns) WITH ORDINALITY AS c(name, i);
  check_rows := format(CASE WHEN cardinality(numbers) = 1 AND numbers[1] <= 16 THEN 'check_column_%s(%s)' ELSE 'check_statement(%2$s)' END,
                       numbers[1], arguments);
  RETURN QUERY
    SELECT n.oid::regclass, w.name,
           format('CREATE TRIGGER %s %s ON %I.%I %s EXECUTE FUNCTION fenceguard.%s', w.name, w.event, s.nspname, n.relname,
                  w.body, w.call)
      FROM pg_class AS n
      JOIN pg_namespace AS s ON s.oid = n.relnamespace
      CROSS JOIN LATERAL (VALUES
        ('r p', 'fenceguard_key', 'AFTER UPDATE' || coalesce(' OF ' || column_list, ''),
         'FOR EACH STATEMENT', format('protect_key(%s)', arguments)),
        ('r', 'fenceguard_insert', 'AFTER INSERT',
         'REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT', check_rows),
        ('r', 'fenceguard_update', 'AFTER UPDATE',
         'REFERENCING OLD TABLE AS fenceguard_rows FOR EACH STATEMENT', check_rows),
        ('r', 'fenceguard_delete', 'AFTER DELETE',
         'REFERENCING OLD TABLE AS fenceguard_rows FOR EACH STATEMENT', check_rows),
        -- A row trigger with a transition table is what PostgreSQL lets no inheritance child and no partition have. Their
        -- parent's statements would not fire the statement triggers above, so the table must become neither.
        ('r', 'fenceguard_rekey', 'AFTER UPDATE',
         format('REFERENCING OLD TABLE AS fenceguard_rows FOR EACH ROW WHEN (%s)', coalesce(key_changes, 'false')),
         format('check_row(%s)', arguments)),
        ('p', 'fenceguard_row', 'AFTER INSERT OR DELETE OR UPDATE', 'FOR EACH ROW', format('check_row(%s)', arguments)),
        ('r p', 'fenceguard_truncate', 'BEFORE TRUNCATE', 'FOR EACH STATEMENT', 'refuse_truncate()')
      ) AS w(kinds, name, event, body, call)
      WHERE n.oid = protected AND position(n.relkind IN w.kinds) > 0
         -- a TRUNCATE trigger is not cloned to partitions: each gets its own
         OR w.name = 'fenceguard_truncate' AND target.relkind = 'p'
            AND n.oid IN (SELECT p.relid FROM pg_partition_tree(protected) AS p);
END $$;

-- The protection triggers that stand on a table and its partitions, clones included.
CREATE VIEW fenceguard.protection_trigger AS
  SELECT t.oid, t.tgrelid::regclass AS relation, t.tgname::text AS name, -- PostgreSQL words a WHEN in its own way
         regexp_replace(pg_get_triggerdef(t.oid), ' WHEN \(.*\) EXECUTE ', ' EXECUTE ') AS definition,
         t.tgenabled IN ('O', 'A') AS enabled, t.tgparentid <> 0 AS cloned,
         format('%I.%I', n.nspname, c.relname) AS qualified_relation
    FROM pg_trigger AS t
    JOIN pg_proc AS p ON p.oid = t.tgfoid
    JOIN pg_class AS c ON c.oid = t.tgrelid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE (NOT t.tgisinternal OR t.tgparentid <> 0)  -- before 15 a partition's clone counts as internal
      AND p.pronamespace = 'fenceguard'::regnamespace
      AND p.proname ~ '^(protect_key|check_statement|check_column_[0-9]+|check_row|refuse_truncate)$';

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
      WITH wanted AS (
        SELECT w.*, regexp_replace(w.definition, ' WHEN \(.*\) EXECUTE ', ' EXECUTE ') AS comparable
          FROM fenceguard.protection_triggers(protected, template) AS w),
      standing AS (
        SELECT * FROM fenceguard.protection_trigger AS t
          WHERE t.relation = protected OR t.relation IN (SELECT p.relid FROM pg_partition_tree(protected) AS p)),
      step AS (
        SELECT 1 AS phase, s.relation, s.name, format('DROP TRIGGER %I ON %s', s.name, s.qualified_relation) AS ddl
          FROM standing AS s LEFT JOIN wanted AS w USING (relation, name)
          WHERE NOT s.cloned AND s.definition IS DISTINCT FROM w.comparable
        UNION ALL
        SELECT 2, w.relation, w.name, w.definition
          FROM wanted AS w LEFT JOIN standing AS s USING (relation, name)
          WHERE w.comparable IS DISTINCT FROM s.definition
        UNION ALL
        SELECT 3, s.relation, s.name, format('ALTER TABLE %s ENABLE TRIGGER %I', s.qualified_relation, s.name)
          FROM standing AS s LEFT JOIN wanted AS w USING (relation, name)
          WHERE NOT s.enabled AND (s.cloned OR s.definition = w.comparable))
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
               ELSE '{fenceguard_insert,fenceguard_update,fenceguard_delete,fenceguard_truncate}' END::text[]
               || CASE WHEN c.relkind = 'r' THEN '{fenceguard_rekey}'::text[] END) AS w(name)
             WHERE NOT EXISTS (SELECT FROM fenceguard.protection_trigger AS t
                               WHERE t.relation = r.relid AND t.name = w.name AND t.enabled)) AS enabled
    FROM pg_trigger AS k
    JOIN pg_proc AS f ON f.oid = k.tgfoid
    JOIN pg_class AS c ON c.oid = k.tgrelid
    WHERE f.pronamespace = 'fenceguard'::regnamespace AND f.proname = 'protect_key';

SELECT fenceguard.end_migration(8, 'protect');
COMMIT;
