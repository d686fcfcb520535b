-- The row fence: what it refuses, what it lets pass, and what it cannot see.
SELECT plan(58);
CREATE TABLE app.ticket (shop int, number int, state text, PRIMARY KEY (shop, number));
INSERT INTO app.ticket SELECT 1, g, 'new' FROM generate_series(1, 9) AS g;

CREATE TABLE app.before AS SELECT pg_relation_filenode('app.ticket') AS node;
CREATE TABLE app.dry AS SELECT s FROM fenceguard.add_row_fence('app.ticket', dry_run => true) AS s;
SELECT is((SELECT count(*) FROM app.dry), 7::bigint, 'a dry run returns the statements');
SELECT hasnt_column('app', 'ticket', 'fencing_token', 'and changes nothing');
SELECT results_eq($$SELECT * FROM fenceguard.add_row_fence('app.ticket')$$, 'SELECT s FROM app.dry', 'add_row_fence carries out exactly these');
SELECT is((SELECT node FROM app.before), pg_relation_filenode('app.ticket'), 'without rewriting the table');
SELECT col_not_null('app', 'ticket', 'fencing_token', 'the column is NOT NULL');
SELECT col_default_is('app', 'ticket', 'fencing_token', '0', 'its default is 0');
SELECT is((SELECT convalidated FROM pg_constraint WHERE conrelid = 'app.ticket'::regclass AND conname = 'fencing_token_range'), true, 'the range check is validated');
SELECT is((SELECT count(*) FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
           WHERE i.indrelid = 'app.ticket'::regclass AND a.attname = 'fencing_token'), 0::bigint, 'the column is not indexed');
SELECT is_empty($$SELECT fenceguard.add_row_fence('app.ticket')$$, 'called again it has nothing to do');

SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 10, state = ''a'' WHERE number = 7'), 'nothing', 'a token that rises');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 9, state = ''b'' WHERE number = 7'),
          'TF001 stale token: presented 9, current 10, resource ticket/1/7 [row: a newer grant has written this row]', 'one that goes backwards');
SELECT is(app.raised('UPDATE app.ticket SET state = ''b'' WHERE number = 7') LIKE 'TF002 unguarded write to ticket/1/7: it leaves%at 10', true, 'a write that never sets the column');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 10, state = ''b'' WHERE number = 7') LIKE 'TF002 %', true, 'the same token again');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = NULL WHERE number = 7') LIKE '23502 %', true, 'null');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = -1 WHERE number = 7') LIKE 'TF001 %', true, 'below 0');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 9007199254740992 WHERE number = 7') LIKE '23514 %', true, '2^53');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 9223372036854775807 WHERE number = 7') LIKE '23514 %', true, '2^63-1');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 9007199254740991 WHERE number = 7'), '22023 token 9007199254740991 was never issued', 'a token that nobody was given');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = CASE number WHEN 7 THEN 11 ELSE 0 END') LIKE 'TF002 %', true, 'one row of many');
SELECT is((SELECT state || fencing_token FROM app.ticket WHERE number = 7), 'a10', 'nothing of it was written');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 10, ''x'')'), 'nothing', 'INSERT without a token');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 11, ''x'', 5)'), 'nothing', 'INSERT with one');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 12, ''x'', NULL)') LIKE '23502 %', true, 'INSERT with null');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 12, ''x'', -1)') LIKE '23514 %', true, 'INSERT below 0');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 12, ''x'', 9007199254740991)') LIKE '22023 %never issued', true, 'INSERT of a token that nobody was given');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (1, 7, ''x'', 9) ON CONFLICT (shop, number) DO UPDATE SET fencing_token = 9') LIKE 'TF001 %', true, 'ON CONFLICT DO UPDATE');
SELECT current_setting('server_version_num')::int >= 150000 AS has_merge \gset
\if :has_merge
SELECT is(app.raised('MERGE INTO app.ticket AS t USING (VALUES (7)) AS v(n) ON t.number = v.n WHEN MATCHED THEN UPDATE SET fencing_token = 9') LIKE 'TF001 %', true, 'MERGE');
\else
SELECT skip('this server has no MERGE', 1);
\endif
-- DELETE and INSERT start again: what the row fence cannot see, and protect does.
SELECT is(app.raised('DELETE FROM app.ticket WHERE number = 7; INSERT INTO app.ticket VALUES (1, 7, ''reset'', 1)'), 'nothing', 'DELETE and INSERT reset a token');
SELECT count(*) AS x FROM fenceguard.protect('app.ticket', 'ticket/{shop}/{number}') \gset
SELECT is(app.raised('DELETE FROM app.ticket WHERE number = 8; INSERT INTO app.ticket VALUES (1, 8, ''reset'', 1)') LIKE 'TF002 %', true, 'not where the table is also protected');
SELECT count(*) AS x FROM fenceguard.unprotect('app.ticket') \gset

-- Other triggers and cascades.
CREATE FUNCTION app.lower() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fencing_token := 3; RETURN NEW; END $$;
CREATE TRIGGER "~~lower" BEFORE UPDATE ON app.ticket FOR EACH ROW EXECUTE FUNCTION app.lower();
UPDATE app.ticket SET fencing_token = 3 WHERE number = 9;
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 20 WHERE number = 9') LIKE 'TF002 %', true, 'a BEFORE trigger that sorts after the guard''s and lowers the token');
DROP TRIGGER "~~lower" ON app.ticket;
CREATE TABLE app.holder (id int PRIMARY KEY);
CREATE TABLE app.holding (id int PRIMARY KEY, holder int REFERENCES app.holder ON UPDATE CASCADE ON DELETE SET NULL);
INSERT INTO app.holder VALUES (1);
INSERT INTO app.holding VALUES (1, 1);
SELECT count(*) AS x FROM fenceguard.add_row_fence('app.holding') \gset
SELECT is(app.raised('UPDATE app.holder SET id = 2') LIKE 'TF002 %', true, 'ON UPDATE CASCADE, which leaves the token');
SELECT is(app.raised('DELETE FROM app.holder') LIKE 'TF002 %', true, 'ON DELETE SET NULL');

-- After a promotion.
UPDATE fenceguard.server_state SET floor = 1000;
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 999 WHERE number = 7'),
          'TF001 stale token: presented 999, current 1000, resource ticket [floor: the grant is from before a promotion or restore of the server]', 'a token from before a promotion');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (2, 1, ''x'', 999)') LIKE 'TF001 %current 1000%', true, 'INSERT of one');
SELECT is(app.raised('INSERT INTO app.ticket VALUES (2, 1, ''x'', 0)'), 'nothing', 'INSERT without a token needs none');
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 1000 WHERE number = 7'), 'nothing', 'a token from after it');
SELECT timeline AS timeline FROM fenceguard.server_state \gset
UPDATE fenceguard.server_state SET timeline = '0000FFFF';
SELECT is(app.raised('UPDATE app.ticket SET fencing_token = 2000 WHERE number = 7') LIKE 'TF004 the server was promoted or restored%', true, 'a server that has not yet raised its floor');
UPDATE fenceguard.server_state SET timeline = :'timeline', floor = 0;

-- Columns and triggers that are tampered with.
SELECT is(app.raised('ALTER TABLE app.ticket DROP COLUMN fencing_token') LIKE '2BP01 %', true, 'PostgreSQL refuses to drop the column');
SELECT is(app.raised('ALTER TABLE app.ticket ALTER COLUMN fencing_token TYPE numeric') LIKE '0A000 %', true, 'and to retype it');
ALTER TABLE app.ticket RENAME fencing_token TO token;
SELECT is(app.raised('UPDATE app.ticket SET token = 3000 WHERE number = 7') LIKE 'TF002 column fencing_token of %is gone%', true, 'renamed, every write is refused');
ALTER TABLE app.ticket RENAME token TO fencing_token;
ALTER TABLE app.ticket DISABLE TRIGGER fenceguard_token_after;
SELECT is((SELECT array_agg(s) FROM fenceguard.add_row_fence('app.ticket') AS s), ARRAY['ALTER TABLE app.ticket ENABLE TRIGGER fenceguard_token_after'], 'a disabled trigger is enabled again');

-- Partitioned: row movement fires no AFTER UPDATE.
CREATE TABLE app.part (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE app.part_1 PARTITION OF app.part FOR VALUES FROM (0) TO (10);
CREATE TABLE app.part_2 PARTITION OF app.part FOR VALUES FROM (10) TO (20);
INSERT INTO app.part VALUES (1, 1);
SELECT is((SELECT count(*) FROM fenceguard.add_row_fence('app.part')), 6::bigint, 'a partitioned table');
SELECT is_empty($$SELECT fenceguard.add_row_fence('app.part')$$, 'once');
UPDATE app.part SET fencing_token = 10;
SELECT is(app.raised('UPDATE app.part SET fencing_token = 9, id = 11') LIKE 'TF001 %presented 9, current 10, resource part/1%', true, 'a row that moves with a lower token');
SELECT is(app.raised('UPDATE app.part SET id = 11') LIKE 'TF002 %', true, 'or with the same one');
SELECT is(app.raised('UPDATE app.part SET fencing_token = 11, id = 11'), 'nothing', 'or with a higher one');
SELECT is(app.raised('UPDATE app.part_2 SET n = 5') LIKE 'TF002 %', true, 'a partition written directly');
CREATE TABLE app.part_3 PARTITION OF app.part FOR VALUES FROM (20) TO (30);
SELECT is(app.raised('INSERT INTO app.part_3 VALUES (20, 1, 9007199254740991)') LIKE '22023 %', true, 'a partition that came later');

-- What cannot have one.
CREATE TABLE app.parent (id int);
CREATE TABLE app.child () INHERITS (app.parent);
CREATE VIEW app.view AS SELECT 1 AS id;
CREATE TABLE app.other (id int, fencing_token int);
SELECT is(app.raised(format('SELECT fenceguard.add_row_fence(%L)', t)) LIKE '22023 %', true, t || ' cannot have one')
  FROM unnest('{app.parent,app.child,app.view,app.other,app.part_1}'::text[]) AS t;
CREATE TABLE app.had (id int, fencing_token bigint);
SELECT is((SELECT count(*) FROM fenceguard.add_row_fence('app.had')), 8::bigint, 'a bigint column that stood before is made use of');

SELECT is((SELECT count(*) FROM fenceguard.remove_row_fence('app.ticket', dry_run => true)), 5::bigint, 'remove_row_fence has a dry run');
SELECT is((SELECT count(*) FROM fenceguard.remove_row_fence('app.ticket')), 5::bigint, 'and takes away what was added');
SELECT hasnt_column('app', 'ticket', 'fencing_token', 'the column too');
SELECT is_empty($$SELECT fenceguard.remove_row_fence('app.ticket')$$, 'a second time it has nothing to do');
SELECT * FROM finish();
