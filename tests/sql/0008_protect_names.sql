-- Names that must be quoted: schemas, tables and columns in mixed case, with quotes, dots, spaces, parentheses, and words of
-- SQL, beside others that an unquoted name would hit. As the table's owner.
\set owner `echo $owner`
\set made `psql -qAtX -U $administrator -d $database -c "CREATE SCHEMA \"Odd \"\"Schema\" AUTHORIZATION $owner" 2>&1`
SELECT plan(25);
SELECT is(:'made'::text, ''::text, 'a schema with an odd name');
CREATE FUNCTION app.claim(resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fenceguard.claim(resource, current_setting('test.token')::bigint, 'holder');
END $$;
SELECT fenceguard.reserve_tokens(1) AS token \gset
SELECT set_config('test.token', :'token', false) AS x \gset

-- What an unquoted name would mean instead: each table has a decoy beside it, and each key column one that is claimed.
CREATE TABLE app.names (number int, place text, decoy_place text, key text, decoy text);
INSERT INTO app.names VALUES
  (1, 'app."Account"', 'app.account', '"Id"', 'id'),
  (2, 'app."order"', NULL, '"select"', 'selected'),
  (3, 'app."a.b"', NULL, '"c.d"', 'd'),
  (4, 'app."it''s"', NULL, '"k""q"', 'kq'),
  (5, 'app."two words"', NULL, '"n) , (SELECT 1"', 'n'),
  (6, 'app."%I"', NULL, '"%s"', 's'),
  (7, 'app."Ünïcode$"', NULL, '"Größe"', 'grösse'),
  (8, '"Odd ""Schema"."T"', NULL, '"Id"', 'id');

CREATE FUNCTION app.try_names(wanted int, partitioned bool) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  t app.names;
  template text;
  decoy_template text;
  outcome text;
BEGIN
  SELECT * INTO t FROM app.names WHERE number = wanted;
  EXECUTE format('CREATE TABLE %s (%s int DEFAULT 9, %s int, filler int) %s', t.place, t.decoy, t.key,
                 CASE WHEN partitioned THEN format('PARTITION BY RANGE (%s)', t.key) END);
  IF partitioned THEN
    EXECUTE format('CREATE TABLE app."Part of it''s %s" PARTITION OF %s DEFAULT', wanted, t.place);
  END IF;
  IF t.decoy_place IS NOT NULL THEN
    EXECUTE format('CREATE TABLE %s (id int)', t.decoy_place);
  END IF;
  template := 'n' || wanted || '/{' || btrim(replace(t.key, '""', '"'), '"') || '}';
  IF t.key LIKE '%""%' THEN
    template := 'n' || wanted || '/{k"q}';
  END IF;
  EXECUTE format('SELECT count(*) FROM fenceguard.protect(%L, %L)', t.place, template);
  EXECUTE format('SELECT count(*) FROM fenceguard.protect(%L, %L)', t.place, template) INTO outcome;
  IF outcome <> '0' THEN
    RETURN NEXT 'a second protect has something to do';
  END IF;
  PERFORM app.claim('n' || wanted || '/5');
  -- the short way and the long one (two rows), and a change of the key
  outcome := app.raised(format('INSERT INTO %s (%s) VALUES (5)', t.place, t.key));
  IF outcome <> 'nothing' THEN RETURN NEXT 'one row: ' || outcome; END IF;
  outcome := app.raised(format('INSERT INTO %s (%s) VALUES (5), (5)', t.place, t.key));
  IF outcome <> 'nothing' THEN RETURN NEXT 'two rows: ' || outcome; END IF;
  outcome := app.raised(format('INSERT INTO %s (%s) VALUES (9), (9)', t.place, t.key));
  IF outcome NOT LIKE 'TF002 unguarded write to %: this transaction has not claimed n' || wanted || '/9%' THEN
    RETURN NEXT 'two rows of another key: ' || outcome;
  END IF;
  outcome := app.raised(format('UPDATE %s SET %s = 9', t.place, t.key));
  IF outcome NOT LIKE 'TF002 unguarded write to %: this transaction has not claimed n' || wanted || '/9%' THEN
    RETURN NEXT 'a change of the key: ' || outcome;
  END IF;
  outcome := app.raised(format('UPDATE %s SET filler = 1', t.place));
  IF outcome <> 'nothing' THEN RETURN NEXT 'an update: ' || outcome; END IF;
  -- not by position any more: a column before it is gone
  EXECUTE format('ALTER TABLE %s DROP COLUMN %I', t.place, t.decoy);
  outcome := app.raised(format('INSERT INTO %s (%s) VALUES (5)', t.place, t.key));
  IF outcome <> 'nothing' THEN RETURN NEXT 'by name: ' || outcome; END IF;
  outcome := app.raised(format('INSERT INTO %s (%s) VALUES (9)', t.place, t.key));
  IF outcome NOT LIKE 'TF002 unguarded write to %: this transaction has not claimed n' || wanted || '/9%' THEN
    RETURN NEXT 'another key, by name: ' || outcome;
  END IF;
  outcome := app.raised(format('UPDATE %s SET %s = 9', t.place, t.key));
  IF outcome NOT LIKE 'TF002 unguarded write to %: this transaction has not claimed n' || wanted || '/9%' THEN
    RETURN NEXT 'a change of the key, by name: ' || outcome;
  END IF;
END $$;

SELECT is_empty(format('SELECT app.try_names(%s, false)', number), place || ' ' || key) FROM app.names;
SELECT is((SELECT count(*) FROM fenceguard.protected_tables WHERE enabled), 8::bigint, 'all stand in protected_tables');
SELECT set_eq($$SELECT relation::text FROM fenceguard.protected_tables$$,
  $$SELECT place::regclass::text FROM app.names$$, 'by their own names');
-- audit's remedies are statements that can be run as they stand
SELECT format('ALTER TABLE %s DISABLE TRIGGER fenceguard_update', place) FROM app.names \gexec
SELECT is((SELECT count(*) FROM fenceguard.audit WHERE finding = 'trigger fenceguard_update is disabled'), 8::bigint, 'audit finds their faults');
SELECT remedy FROM fenceguard.audit WHERE finding = 'trigger fenceguard_update is disabled' \gexec
SELECT is((SELECT count(*) FROM fenceguard.audit WHERE finding = 'trigger fenceguard_update is disabled'), 0::bigint, 'and its remedies mend them');
SELECT is((SELECT count(*) FROM fenceguard.unprotect(place::regclass)), 6::bigint, 'unprotect ' || place) FROM app.names;
SELECT format('DROP TABLE %s', place) FROM app.names \gexec
DROP TABLE app.account;

SELECT is_empty(format('SELECT app.try_names(%s, true)', number), 'partitioned: ' || place || ' ' || key) FROM app.names WHERE number IN (1, 3);
SELECT is((SELECT count(*) FROM fenceguard.unprotect('app."a.b"')), 4::bigint, 'unprotect reaches the partition');
SELECT is_empty($$SELECT FROM fenceguard.protection_trigger WHERE relation = 'app."a.b"'::regclass$$, 'and leaves nothing');
DROP SCHEMA "Odd ""Schema" CASCADE;
SELECT * FROM finish();
