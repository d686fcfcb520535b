-- Calling protect, what it refuses to protect, the names of resources, and columns that change afterwards. As the table's
-- owner, who is not a superuser.
SELECT plan(96);
CREATE FUNCTION app.claim(resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fenceguard.claim(resource, current_setting('test.token')::bigint, 'holder');
END $$;
GRANT EXECUTE ON FUNCTION app.claim(text) TO PUBLIC;
SELECT fenceguard.reserve_tokens(1) AS token \gset
SELECT set_config('test.token', :'token', false) AS x \gset

CREATE TABLE app.account (id int PRIMARY KEY, balance bigint NOT NULL, note text);
INSERT INTO app.account SELECT g, 100 FROM generate_series(1, 20) AS g;

-- Calling it.
SELECT set_eq($$SELECT split_part(s, ' ', 3) FROM fenceguard.protect('app.account', 'account/{id}', dry_run => true) AS s$$,
  ARRAY['fenceguard_key', 'fenceguard_insert', 'fenceguard_update', 'fenceguard_delete', 'fenceguard_rekey',
        'fenceguard_truncate'], 'a dry run returns the statements');
SELECT is_empty($$SELECT FROM pg_trigger WHERE tgrelid = 'app.account'::regclass$$, 'and changes nothing');
CREATE TABLE app.dry AS SELECT * FROM fenceguard.protect('app.account', 'account/{id}', dry_run => true) AS statement;
SELECT results_eq($$SELECT * FROM fenceguard.protect('app.account', 'account/{id}')$$,
                  $$SELECT statement FROM app.dry$$, 'protect carries out exactly these');
SELECT is_empty($$SELECT fenceguard.protect('app.account', 'account/{id}')$$, 'called again it has nothing to do');
SELECT is(app.raised('INSERT INTO app.account VALUES (99, 0)') LIKE 'TF002 %', true, 'the owner is refused as well');
SELECT isnt_empty($$SELECT fenceguard.protect('app.account', 'konto/{id}')$$, 'another template replaces the first');
SELECT is((SELECT template FROM fenceguard.protected_tables WHERE relation = 'app.account'::regclass), 'konto/{id}',
          'protected_tables shows it');
SELECT is(app.raised($$SELECT app.claim('account/1'); UPDATE app.account SET balance = 1 WHERE id = 1$$) LIKE 'TF002 %',
          true, 'the first template opens nothing any more');
SELECT is(app.raised($$SELECT app.claim('konto/1'); UPDATE app.account SET balance = 1 WHERE id = 1$$), 'nothing',
          'the second does');
ALTER TABLE app.account DISABLE TRIGGER fenceguard_update;
SELECT is((SELECT enabled FROM fenceguard.protected_tables WHERE relation = 'app.account'::regclass), false,
          'a disabled trigger shows');
SELECT is((SELECT array_agg(s) FROM fenceguard.protect('app.account', 'konto/{id}') AS s),
          ARRAY['ALTER TABLE app.account ENABLE TRIGGER fenceguard_update'], 'protect enables it again');
SELECT is((SELECT count(*) FROM fenceguard.unprotect('app.account', dry_run => true)), 6::bigint, 'unprotect has a dry run');
SELECT is((SELECT count(*) FROM fenceguard.unprotect('app.account')), 6::bigint, 'unprotect drops what protect made');
SELECT is(app.raised('UPDATE app.account SET balance = 2 WHERE id = 1'), 'nothing', 'and writes are free again');
SELECT is_empty($$SELECT fenceguard.unprotect('app.account')$$, 'a second time it has nothing to do');

-- What cannot be protected, with the reason.
CREATE VIEW app.view AS SELECT * FROM app.account;
CREATE MATERIALIZED VIEW app.matview AS SELECT * FROM app.account;
CREATE TABLE app.parent (id int);
CREATE TABLE app.child () INHERITS (app.parent);
CREATE DOMAIN app.number AS int CHECK (VALUE > 0);
CREATE DOMAIN app.positive AS app.number;
CREATE TABLE app.kinds (i2 smallint, i8 bigint, t text, v varchar(20), u uuid, c char(5), d date, f float8, n numeric, b bytea,
  ts timestamptz, bo bool, dom app.positive, "Mixed ""Name" int, ci text COLLATE "C", e text[]);
SELECT is(app.raised(format('SELECT fenceguard.protect(%L, ''x/{id}'')', r)) LIKE '22023 %' || reason || '%', true, r || ': ' || reason)
  FROM (VALUES ('app.view', 'is not a table'), ('app.matview', 'is not a table'), ('app.parent', 'takes part in inheritance'),
               ('app.child', 'takes part in inheritance'), ('fenceguard.fence', 'belongs to the system')) AS v(r, reason);
SELECT is(app.raised(format('SELECT fenceguard.protect(%L, %L)', 'app.kinds', 'x/{' || c || '}')) LIKE '22023 %a key is an integer%',
          true, 'a key is not of the type of ' || c) FROM unnest('{c,d,f,n,b,ts,bo,e}'::text[]) AS c;
SELECT is(app.raised(format('SELECT fenceguard.protect(%L, %L)', 'app.kinds', 'x/{' || c || '}')), 'nothing', c || ' can be a key')
  FROM unnest(ARRAY['i2', 'i8', 't', 'v', 'u', 'dom', 'T', '"t"', 'Mixed "Name', 'ci']) AS c;
SELECT is(app.raised(format('SELECT fenceguard.protect(%L, %L)', 'app.kinds', t)) LIKE '22023 template%', true, 'template ' || coalesce(t, 'null'))
  FROM unnest(ARRAY['x/{nothing}', 'x/{t', 'x/t}', 'x/{}', '{t}{v}', '{t}a{v}', '{t}1{v}', '{t}%{v}', '{t}é{v}', '{t}/{t}',
                    '', NULL, repeat('x', 513)]) AS t;
SELECT is(app.raised($$SELECT fenceguard.protect(NULL, 'x')$$) LIKE '22023 %', true, 'no table');
SELECT is(app.raised($$SELECT fenceguard.protect('pg_catalog.pg_class', 'x')$$) LIKE '42501 %', true, 'a table of another''s');
CREATE COLLATION app.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE app.loose_key (t text COLLATE app.loose);
SELECT is(app.raised($$SELECT fenceguard.protect('app.loose_key', 'x/{t}')$$) LIKE '22023 %nondeterministic%', true,
          'nor of a collation in which two texts are one key');

-- Names of resources: two keys never give one.
CREATE TABLE app.pair (a text, b text, PRIMARY KEY (a, b));
SELECT count(*) AS x FROM fenceguard.protect('app.pair', 'p/{a}/{b}') \gset
SELECT is(app.raised(format('SELECT app.claim(%L); INSERT INTO app.pair VALUES (%L, %L)', claimed, a, b)), expected,
          format('%s opens (%s, %s): %s', claimed, a, b, expected))
  FROM (VALUES ('p/x/y', 'x', 'y', 'nothing'),
               ('p/x%2Fy/z', 'x/y', 'z', 'nothing'),
               ('p/x/y%2Fz', 'x', 'y/z', 'nothing'),
               ('p/x%252Fy/z', 'x%2Fy', 'z', 'nothing'),
               ('p//', '', '', 'nothing'),
               ('p/x/y/z', 'x/y', 'zz', 'TF002 unguarded write to app.pair: this transaction has not claimed p/x%2Fy/zz'),
               ('p/x/y/z', 'xx', 'y/z', 'TF002 unguarded write to app.pair: this transaction has not claimed p/xx/y%2Fz'))
    AS v(claimed, a, b, expected);
SELECT is(count(DISTINCT fenceguard.resource_name('{p/,/,:,""}', ARRAY[a, b, c])), count(*), 'no two of 1,000 keys of hostile text meet')
  FROM unnest('{"",/,//,:,%,%2F,%3A,a,/:,%25}'::text[]) AS a, unnest('{"",/,//,:,%,%2F,%3A,a,/:,%25}'::text[]) AS b,
       unnest('{"",/,//,:,%,%2F,%3A,a,/:,%25}'::text[]) AS c;
CREATE TABLE app."Odd Name" ("Id" int, "a.b" varchar(600), n int, PRIMARY KEY ("a.b", "Id"));
SELECT count(*) AS x FROM fenceguard.protect('app."Odd Name"', 'odd/{a.b}:{"Id"}/{{}}') \gset
SELECT is(app.raised($$SELECT app.claim('odd/k''ä:7/{}'); INSERT INTO app."Odd Name" VALUES (7, 'k''ä', 1)$$), 'nothing',
          'names in mixed case, with a dot, in another order than the columns');
SELECT is(app.raised($$INSERT INTO app."Odd Name" VALUES (7, repeat('x', 513), 1)$$) LIKE 'TF002 %more than 512 bytes%', true,
          'a name that nobody can claim');
SELECT is(app.raised($$INSERT INTO app."Odd Name" VALUES (7, 'x', 1), (8, 'x', 1), (9, 'x', 1)$$) LIKE 'TF002 %', true, 'many rows');
CREATE TABLE app.nullable (note text, id int);
SELECT count(*) AS x FROM fenceguard.protect('app.nullable', 'n/{id}') \gset
SELECT is(app.raised('INSERT INTO app.nullable VALUES (''x'', NULL)') LIKE 'TF002 %a key column is null', true, 'a null key is refused');
CREATE TABLE app.constant (id int);
SELECT count(*) AS x FROM fenceguard.protect('app.constant', 'whole table') \gset
SELECT is(app.raised('INSERT INTO app.constant VALUES (1), (2)') LIKE 'TF002 %has not claimed whole table', true, 'a template without columns');
SELECT is(app.raised($$SELECT app.claim('whole table'); INSERT INTO app.constant VALUES (1), (2); UPDATE app.constant SET id = 3$$),
          'nothing', 'is one resource for all rows');

-- Columns that are renamed, swapped, dropped or retyped afterwards; tables that become children.
SELECT is(app.raised('ALTER TABLE app.pair DROP COLUMN a') LIKE '2BP01 %', true, 'PostgreSQL refuses to drop a key column');
SELECT is(app.raised('ALTER TABLE app.pair ALTER COLUMN a TYPE varchar') LIKE '0A000 %', true, 'and to retype it');
ALTER TABLE app.pair RENAME a TO c;
SELECT is(app.raised($$SELECT app.claim('p/x/y'); DELETE FROM app.pair WHERE b = 'y'$$) LIKE 'TF002 %were renamed%', true, 'a renamed one is noticed');
ALTER TABLE app.pair RENAME b TO a;
ALTER TABLE app.pair RENAME c TO b;
SELECT is(app.raised($$SELECT app.claim('p/x/y'); DELETE FROM app.pair WHERE a = 'y'$$) LIKE 'TF002 %were renamed%', true, 'so are two that were swapped');
SELECT is((SELECT columns FROM fenceguard.protected_tables WHERE relation = 'app.pair'::regclass), '{b,a}', 'protected_tables has the names of now');
SELECT is((SELECT count(*) FROM fenceguard.protect('app.pair', 'p/{b}/{a}')), 10::bigint, 'protect again mends it');
SELECT is(app.raised($$SELECT app.claim('p/x/y'); DELETE FROM app.pair WHERE a = 'y'$$), 'nothing', 'and writes go on');
ALTER TABLE app.pair DROP COLUMN b CASCADE;
SELECT is(app.raised($$SELECT app.claim('p/x/y'); INSERT INTO app.pair VALUES ('y')$$) LIKE 'TF002 %were renamed%', true, 'dropped with CASCADE: all is refused');
ALTER TABLE app.nullable DROP COLUMN note;
SELECT is(app.raised($$SELECT app.claim('n/5'); INSERT INTO app.nullable VALUES (5)$$), 'nothing', 'a column before the key may go');
SELECT is(app.raised($$SELECT app.claim('n/5'); INSERT INTO app.nullable VALUES (5), (6), (7), (8)$$) LIKE 'TF002 %', true, 'and nothing slips');
ALTER TABLE app."Odd Name" RENAME TO odd;
ALTER TABLE app.odd RENAME n TO m;
SELECT is(app.raised($$SELECT app.claim('odd/q:7/{}'); INSERT INTO app.odd VALUES (7, 'q', 1)$$), 'nothing', 'the table and other columns may be renamed');
SELECT is(app.raised('ALTER TABLE app.odd ADD COLUMN extra int; ALTER TABLE app.odd DROP COLUMN extra'), 'nothing', 'and added and dropped');
CREATE TABLE app.above (id int);
SELECT is(app.raised('ALTER TABLE app.constant INHERIT app.above') LIKE '% prevents table "constant" from becoming %', true, 'a protected table cannot become an inheritance child');
CREATE TABLE app.above_partitioned (id int) PARTITION BY LIST (id);
SELECT is(app.raised('ALTER TABLE app.above_partitioned ATTACH PARTITION app.constant DEFAULT') LIKE '% prevents table "constant" from becoming %', true, 'nor a partition');
CREATE TABLE app.below () INHERITS (app.constant);
SELECT is(app.raised('UPDATE app.constant SET id = 4') LIKE 'TF002 %', true, 'a child attached later: writes through the parent are checked');
SELECT is((SELECT count(*) FROM fenceguard.audit WHERE subject = 'below' AND finding LIKE 'is an inheritance child%'), 1::bigint, 'and audit reports it');
DROP TABLE app.below;

-- The number of a transaction comes again in a copied cluster: with another start time it proves nothing.
CREATE TABLE app.copied (id int);
SELECT count(*) AS x FROM fenceguard.protect('app.copied', 'copied/{id}') \gset
SELECT is(app.raised(format('SELECT app.claim(''copied/1''); UPDATE fenceguard.fence SET claimed_at = claimed_at - interval %L '
                            'WHERE resource = ''copied/1''; INSERT INTO app.copied VALUES %s', '1 us', rows)) LIKE 'TF002 %', true,
          'a claim by a transaction of the same number that began at another time: ' || rows)
  FROM unnest('{(1),"(1), (1)"}'::text[]) AS rows;

-- The checks find the key by its position while they can: wherever it stands, however many columns were dropped before it, and
-- whatever the other columns are called. The others hold other numbers, so that a wrong column names another resource.
CREATE FUNCTION app.wrong_answers(place int, gone int, key text, partitioned bool, others text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  statement text;
  expected text;
  answer text;
BEGIN
  EXECUTE format('CREATE TABLE app.placed (%s%s id int, second int, last int%s)',
    (SELECT string_agg(format('gone_%s int DEFAULT 300, ', g), '') FROM generate_series(1, gone) AS g),
    (SELECT string_agg(format('before_%s int DEFAULT 200 + %1$s, ', g), '') FROM generate_series(1, place - 1) AS g), others)
    || CASE WHEN partitioned THEN ' PARTITION BY RANGE (id)' ELSE '' END;
  IF partitioned THEN
    CREATE TABLE app.placed_all PARTITION OF app.placed DEFAULT;
  END IF;
  FOR i IN 1 .. gone LOOP
    EXECUTE format('ALTER TABLE app.placed DROP COLUMN gone_%s', i);
  END LOOP;
  PERFORM fenceguard.protect('app.placed', 'placed/' || key);
  FOR statement, expected IN VALUES
      ('INSERT INTO app.placed (id, second) VALUES (5, 6)', 'yes'), ('INSERT INTO app.placed (id, second) VALUES (7, 6)', 'no'),
      ('INSERT INTO app.placed (id, second) VALUES (5, 6), (5, 6)', 'yes'),
      ('INSERT INTO app.placed (id, second) VALUES (5, 6), (7, 6)', 'no'), ('INSERT INTO app.placed (id, second) VALUES (7, 6), (5, 6)', 'no'),
      ('INSERT INTO app.placed (id, second) SELECT 7, 6 WHERE false', 'yes'), ('INSERT INTO app.placed (id, second) VALUES (NULL, 6)', 'no'),
      ('UPDATE app.placed SET last = 8', 'yes'), ('UPDATE app.placed SET id = 7', 'no'), ('UPDATE app.placed SET id = 5', 'yes'),
      ('UPDATE app.placed SET last = 8 WHERE false', 'yes'), ('DELETE FROM app.placed', 'yes') LOOP
    answer := app.raised(format('INSERT INTO app.placed (id, second) VALUES (5, 6); %s', statement));
    answer := CASE WHEN answer = 'nothing' THEN 'yes' WHEN answer LIKE 'TF002 unguarded write to app.placed%' THEN 'no' ELSE answer END;
    IF answer IS DISTINCT FROM expected THEN
      RETURN NEXT format('place %s, %s dropped, %s: %s', place, gone, statement, answer);
    END IF;
  END LOOP;
  DROP TABLE app.placed;
END $$;
BEGIN;
SELECT count(*) AS x FROM (SELECT app.claim('placed/5'), app.claim('placed/5/6')) AS c \gset
SELECT is_empty(format('SELECT w FROM generate_series(1, 10) AS place, generate_series(0, 2) AS gone, '
                       'app.wrong_answers(place, gone, %L, %L, '''') AS w', key, partitioned),
                format('the right rows for %s at any place, with columns dropped before it, partitioned: %s', key, partitioned))
  FROM unnest(ARRAY['{id}', '{id}/{second}']) AS key, unnest('{f,t}'::bool[]) AS partitioned;
SELECT is_empty(format('SELECT app.wrong_answers(%s, 0, ''{id}'', %L, '', number int, value int, width int, key int, name int, '
                       'k int, c1 int, r int, f int, i int, o int, n int, root int, before int, after int, in_front int, place int, one_row int'')', place, partitioned),
                format('columns called like the checks'' variables, key at place %s, partitioned: %s', place, partitioned))
  FROM unnest('{1,7}'::int[]) AS place, unnest('{f,t}'::bool[]) AS partitioned;

-- A session whose plans are kept sees what DDL has changed.
CREATE TABLE app.changing (note int, id int, n int);
SELECT count(*) AS x FROM fenceguard.protect('app.changing', 'placed/{id}') \gset
PREPARE write AS INSERT INTO app.changing (id, n) VALUES ($1, 5);
EXECUTE write(5); EXECUTE write(5); EXECUTE write(5); EXECUTE write(5); EXECUTE write(5); EXECUTE write(5);
ALTER TABLE app.changing DROP COLUMN note;
SELECT is(app.raised('EXECUTE write(5)'), 'nothing', 'a column dropped in between: the key is still found');
SELECT is(app.raised('EXECUTE write(7)') LIKE 'TF002 %has not claimed placed/7', true, 'and no other column is taken for it');
COMMIT;
SELECT * FROM finish();
