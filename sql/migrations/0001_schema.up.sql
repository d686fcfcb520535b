-- 0001: the schema, the list of migrations, and a record of what they made, so that later comparison
-- tells what is missing, altered by hand, or foreign.
--
-- Every migration is one transaction and plain SQL. A role that is not a superuser can run it: it
-- needs CREATE on the database only while the schema does not exist, and CREATE on the schema after that.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

DO $$
BEGIN
  -- One migrator at a time; the key is the word "migrate" in ASCII.
  PERFORM pg_catalog.pg_advisory_xact_lock(30796665482998885);
  -- Looked up in the catalog itself: after the wait for another migrator, to_regclass() may answer from before.
  IF EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              WHERE n.nspname = 'fenceguard' AND c.relname = 'schema_version') THEN
    RAISE EXCEPTION 'migration 1 is already applied' USING ERRCODE = 'duplicate_object';
  END IF;
  -- CREATE SCHEMA IF NOT EXISTS would demand CREATE on the database even where the schema exists.
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname = 'fenceguard') THEN
    CREATE SCHEMA fenceguard;
  END IF;
END $$;

CREATE TABLE fenceguard.schema_version (
  version    int         CONSTRAINT schema_version_pkey PRIMARY KEY
                         CONSTRAINT schema_version_positive CHECK (version > 0),
  name       text        NOT NULL,
  checksum   text,       -- of the file, written by the tool that applied it; psql leaves it empty
  applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE fenceguard.schema_version IS 'The migrations that stand, one row each.';

CREATE TABLE fenceguard.recorded_objects (
  kind        text COLLATE "C" NOT NULL,
  object      text COLLATE "C" NOT NULL,
  fingerprint text NOT NULL,  -- SHA-256 over the object's catalog fields
  CONSTRAINT recorded_objects_pkey PRIMARY KEY (kind, object)
);
COMMENT ON TABLE fenceguard.recorded_objects IS
  'What the schema held when its last migration ended; fenceguard.altered_objects() compares.';

-- What the schema holds now. Built from catalog fields and not from pg_get_functiondef() and the like, whose
-- layout changes with the server's version. Left out on purpose: owners, privileges (the roles files change
-- them) and storage parameters (an administrator may tune them). NOT NULL stands with the column, because only
-- PostgreSQL 18 lists it among the constraints.
CREATE FUNCTION fenceguard.current_objects(OUT kind text, OUT object text, OUT fingerprint text)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = 'fenceguard'),
  relation AS (SELECT c.* FROM pg_class c JOIN schema s ON s.oid = c.relnamespace),
  parts(kind, object, fields) AS (
    SELECT 'function', p.oid::regprocedure::text,
           ROW(p.prosrc, p.proconfig, p.prosecdef, p.provolatile, p.proisstrict, p.proretset, p.prokind,
               p.prorettype::regtype, p.proargnames, p.proargmodes, p.proallargtypes::regtype[],
               pg_get_expr(p.proargdefaults, 0), l.lanname)::text
      FROM pg_proc p JOIN schema s ON s.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang
    UNION ALL
    SELECT 'table', c.oid::regclass::text,
           ROW(c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity,
               (SELECT array_agg(ROW(a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, n.collname,
                                     a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid))::text
                                 ORDER BY a.attnum)
                  FROM pg_attribute a
                  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                  LEFT JOIN pg_collation n ON n.oid = a.attcollation
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))::text
      FROM relation c WHERE c.relkind IN ('r', 'p', 'f')
    UNION ALL
    SELECT 'view', c.oid::regclass::text, ROW(c.relkind, pg_get_viewdef(c.oid))::text
      FROM relation c WHERE c.relkind IN ('v', 'm')
    UNION ALL
    SELECT 'sequence', c.oid::regclass::text, c.relpersistence::text
      FROM relation c WHERE c.relkind = 'S'
    UNION ALL
    SELECT 'index', c.oid::regclass::text,
           ROW(pg_get_indexdef(c.oid), i.indisunique, i.indisvalid, i.indimmediate)::text
      FROM relation c JOIN pg_index i ON i.indexrelid = c.oid
    UNION ALL
    SELECT 'constraint', format('%s.%I', c.oid::regclass, n.conname),
           ROW(n.contype, n.condeferrable, n.convalidated, pg_get_constraintdef(n.oid))::text
      FROM relation c JOIN pg_constraint n ON n.conrelid = c.oid WHERE n.contype IN ('c', 'f', 'p', 'u', 'x')
    UNION ALL
    SELECT 'trigger', format('%s.%I', c.oid::regclass, t.tgname),
           ROW(t.tgfoid::regprocedure, t.tgtype, t.tgenabled, t.tgattr, t.tgargs, pg_get_expr(t.tgqual, t.tgrelid))::text
      FROM relation c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 'rule', format('%s.%I', c.oid::regclass, r.rulename), ROW(r.ev_type, r.ev_enabled, r.is_instead)::text
      FROM relation c JOIN pg_rewrite r ON r.ev_class = c.oid WHERE r.rulename <> '_RETURN'
    UNION ALL
    SELECT 'policy', format('%s.%I', c.oid::regclass, y.polname), ROW(y.polcmd, y.polpermissive)::text
      FROM relation c JOIN pg_policy y ON y.polrelid = c.oid
    UNION ALL
    SELECT 'type', t.oid::regtype::text, ROW(t.typtype, t.typbasetype::regtype, t.typnotnull)::text
      FROM pg_type t JOIN schema s ON s.oid = t.typnamespace
     WHERE t.typtype IN ('d', 'e', 'r') OR (t.typtype = 'c' AND
           EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
  )
  SELECT p.kind, p.object, encode(sha256(convert_to(p.fields, 'UTF8')), 'hex') FROM parts p
$$;
COMMENT ON FUNCTION fenceguard.current_objects() IS 'The objects in the schema now, each with a fingerprint.';

CREATE FUNCTION fenceguard.record_objects() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM fenceguard.recorded_objects;
  INSERT INTO fenceguard.recorded_objects(kind, object, fingerprint)
    SELECT c.kind, c.object, c.fingerprint FROM fenceguard.current_objects() c;
$$;
COMMENT ON FUNCTION fenceguard.record_objects() IS
  'Takes the schema as it stands for right. For migrations, and for an administrator who altered it on purpose.';

CREATE FUNCTION fenceguard.altered_objects(OUT finding text, OUT kind text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN now_there.kind IS NULL THEN 'missing'
              WHEN recorded.kind IS NULL THEN 'unexpected'
              ELSE 'altered' END,
         coalesce(recorded.kind, now_there.kind), coalesce(recorded.object, now_there.object)
    FROM fenceguard.recorded_objects recorded
    FULL JOIN fenceguard.current_objects() now_there
      ON now_there.kind = recorded.kind AND now_there.object = recorded.object
   WHERE recorded.fingerprint IS DISTINCT FROM now_there.fingerprint
   ORDER BY 2, 3
$$;
COMMENT ON FUNCTION fenceguard.altered_objects() IS
  'What differs from the record: missing, altered or unexpected. No row means that nothing does.';

-- The frame of every later migration. begin_migration() waits for another migrator, then looks: the order is
-- what makes two migrators at once safe.
CREATE FUNCTION fenceguard.begin_migration(version int, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  newest int;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a migration needs READ COMMITTED' USING ERRCODE = 'active_sql_transaction';
  END IF;
  PERFORM pg_advisory_xact_lock(30796665482998885);
  SELECT max(v.version) INTO newest FROM fenceguard.schema_version v;
  IF newest >= begin_migration.version THEN
    RAISE EXCEPTION 'migration % (%) is already applied', version, name
      USING ERRCODE = 'duplicate_object', DETAIL = format('The schema is at version %s.', newest);
  ELSIF newest IS DISTINCT FROM begin_migration.version - 1 THEN
    RAISE EXCEPTION 'migration % (%) does not follow version %', version, name, coalesce(newest, 0)
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Apply the migrations in the order of their numbers.';
  END IF;
END $$;

CREATE FUNCTION fenceguard.end_migration(version int, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO fenceguard.schema_version(version, name) VALUES (end_migration.version, end_migration.name);
  -- PostgreSQL lets everybody execute a new function. Here nobody may who was not given it.
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA fenceguard FROM PUBLIC;
  PERFORM fenceguard.record_objects();
END $$;

CREATE FUNCTION fenceguard.begin_rollback(version int, name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  newest int;
BEGIN
  PERFORM pg_advisory_xact_lock(30796665482998885);
  SELECT max(v.version) INTO newest FROM fenceguard.schema_version v;
  IF newest IS DISTINCT FROM begin_rollback.version THEN
    RAISE EXCEPTION 'migration % (%) is not the newest one', version, name
      USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = format('The schema is at version %s.', coalesce(newest, 0));
  END IF;
END $$;

CREATE FUNCTION fenceguard.end_rollback(version int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM fenceguard.schema_version v WHERE v.version = end_rollback.version;
  PERFORM fenceguard.record_objects();
END $$;

SELECT fenceguard.end_migration(1, 'schema');
COMMIT;
