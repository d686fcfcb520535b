-- A protected partitioned table: its partitions, whatever way they came and go.
\set owner `echo $owner`
SELECT plan(46);
CREATE FUNCTION app.claim(resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fenceguard.claim(resource, current_setting('test.token')::bigint, 'holder');
END $$;
SELECT fenceguard.reserve_tokens(1) AS token \gset
SELECT set_config('test.token', :'token', false) AS x \gset

CREATE TABLE app.orders (shop int, number int, state text, PRIMARY KEY (shop, number)) PARTITION BY LIST (shop);
CREATE TABLE app.orders_1 PARTITION OF app.orders FOR VALUES IN (1);
-- attached, with its columns in another order and one dropped
CREATE TABLE app.orders_2 (gone int, state text, number int NOT NULL, shop int NOT NULL);
ALTER TABLE app.orders_2 DROP COLUMN gone;
ALTER TABLE app.orders ATTACH PARTITION app.orders_2 FOR VALUES IN (2);
-- partitioned in its turn
CREATE TABLE app.orders_3 PARTITION OF app.orders FOR VALUES IN (3) PARTITION BY RANGE (number);
CREATE TABLE app.orders_3_low PARTITION OF app.orders_3 FOR VALUES FROM (0) TO (100);
INSERT INTO app.orders VALUES (1, 1, 'new'), (2, 1, 'new'), (3, 1, 'new');

SELECT is(app.raised($$SELECT fenceguard.protect('app.orders_1', 'o/{number}')$$), '22023 app.orders_1 is a partition: protect app.orders',
          'a partition is not protected alone');
SELECT is(app.raised($$SELECT fenceguard.protect('app.orders_3', 'o/{number}')$$) LIKE '22023 % is a partition: protect app.orders', true,
          'nor one that is partitioned itself');
SELECT is((SELECT count(*) FROM fenceguard.protect('app.orders', 'order/{shop}/{number}')), 7::bigint, 'the whole tree is');
SELECT is_empty($$SELECT fenceguard.protect('app.orders', 'order/{shop}/{number}')$$, 'once');
SELECT is(ROW(mechanism, enabled)::text, '(row,t)', 'protected_tables tells how') FROM fenceguard.protected_tables
  WHERE relation = 'app.orders'::regclass;
SELECT is_empty($$SELECT * FROM fenceguard.audit WHERE severity = 'error'$$, 'audit has nothing to say');

SELECT is(app.raised(s) LIKE 'TF002 %has not claimed order/%', true, s)
  FROM unnest(ARRAY['UPDATE app.orders SET state = ''x''', 'UPDATE app.orders_1 SET state = ''x''', 'UPDATE app.orders_2 SET state = ''x''',
    'UPDATE app.orders_3 SET state = ''x''', 'UPDATE app.orders_3_low SET state = ''x''', 'INSERT INTO app.orders VALUES (1, 2, ''x'')',
    'INSERT INTO app.orders_2 (number, shop) VALUES (2, 2)', 'INSERT INTO app.orders_3_low VALUES (3, 2, ''x'')',
    'DELETE FROM app.orders WHERE shop = 2', 'DELETE FROM app.orders_3_low',
    'INSERT INTO app.orders VALUES (1, 1, ''x'') ON CONFLICT (shop, number) DO UPDATE SET state = ''x''']) AS s;
SELECT is(app.raised('TRUNCATE ' || t) LIKE 'TF002 %is not truncated', true, 'TRUNCATE ' || t)
  FROM unnest('{app.orders,app.orders_1,app.orders_2,app.orders_3,app.orders_3_low}'::text[]) AS t;
SELECT is((SELECT count(*) FROM app.orders WHERE state = 'new'), 3::bigint, 'nothing of it was written');

SELECT is(app.raised($$SELECT app.claim('order/2/1'); UPDATE app.orders SET state = 'paid' WHERE shop = 2 AND number = 1$$), 'nothing', 'a claim opens its row');
SELECT is(app.raised($$SELECT app.claim('order/2/1'); UPDATE app.orders_2 SET state = 'sent'$$), 'nothing', 'also where the partition is written directly');
SELECT is(app.raised($$SELECT app.claim('order/1/1'); UPDATE app.orders SET shop = 3, number = 8 WHERE shop = 1$$) LIKE 'TF002 %claimed order/3/8', true, 'a row that moves to another partition: the new key');
SELECT is(app.raised($$SELECT app.claim('order/3/9'); UPDATE app.orders SET shop = 3, number = 9 WHERE shop = 1$$) LIKE 'TF002 %claimed order/1/1', true, 'the old key');
SELECT is(app.raised($$SELECT app.claim('order/1/1'), app.claim('order/3/9'); UPDATE app.orders SET shop = 3, number = 9 WHERE shop = 1$$), 'nothing', 'both');

-- Partitions that come later, empty or full.
CREATE TABLE app.orders_4 PARTITION OF app.orders FOR VALUES IN (4);
CREATE TABLE app.orders_5 (shop int NOT NULL, number int NOT NULL, state text);
INSERT INTO app.orders_5 VALUES (5, 1, 'new');
ALTER TABLE app.orders ATTACH PARTITION app.orders_5 FOR VALUES IN (5);
SELECT is(app.raised('INSERT INTO app.orders_4 VALUES (4, 1, ''x'')') LIKE 'TF002 %', true, 'one created later is checked');
SELECT is(app.raised('DELETE FROM app.orders_5') LIKE 'TF002 %', true, 'one attached later too');
SELECT set_eq($$SELECT subject FROM fenceguard.audit WHERE finding = 'trigger fenceguard_truncate is missing'$$,
              ARRAY['orders_4', 'orders_5'], 'what PostgreSQL does not clone is reported');
SELECT is((SELECT enabled FROM fenceguard.protected_tables WHERE relation = 'app.orders'::regclass), false, 'and not called enabled');
SELECT remedy FROM fenceguard.audit WHERE finding = 'trigger fenceguard_truncate is missing' LIMIT 1 \gexec
SELECT is(app.raised('TRUNCATE app.orders_5') LIKE 'TF002 %', true, 'the remedy mends it');
SELECT is_empty($$SELECT * FROM fenceguard.audit WHERE severity = 'error'$$, 'and the finding is gone');
ALTER TABLE app.orders_1 DISABLE TRIGGER fenceguard_row;
SELECT is((SELECT remedy FROM fenceguard.audit WHERE finding = 'trigger fenceguard_row is disabled'),
          'SELECT fenceguard.protect(''app.orders'', ''order/{shop}/{number}'');', 'a clone that was disabled is found');
SELECT is((SELECT array_agg(s) FROM fenceguard.protect('app.orders', 'order/{shop}/{number}') AS s),
          ARRAY['ALTER TABLE app.orders_1 ENABLE TRIGGER fenceguard_row'], 'and enabled again');

ALTER TABLE app.orders DETACH PARTITION app.orders_5;
SELECT is((SELECT finding FROM fenceguard.audit WHERE subject = 'orders_5'), 'has protection triggers and is not protected',
          'a detached partition keeps no check, and is reported');
SELECT is((SELECT count(*) FROM fenceguard.unprotect('app.orders_5')), 1::bigint, 'unprotect clears what is left on it');
ALTER TABLE app.orders RENAME shop TO store;
SELECT is(app.raised($$SELECT app.claim('order/2/1'); UPDATE app.orders SET state = 'late' WHERE number = 1$$) LIKE 'TF002 %were renamed%', true, 'a renamed key column is noticed on partitions');
SELECT is((SELECT count(*) FROM fenceguard.unprotect('app.orders')), 8::bigint, 'unprotect reaches all partitions');
SELECT is_empty($$SELECT FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid WHERE p.pronamespace = 'fenceguard'::regnamespace
                  AND t.tgrelid::regclass::text LIKE '%orders%'$$, 'and leaves nothing');

-- A partition that has the columns in another order than its root.
CREATE TABLE app.turned (shop int, number int, state text) PARTITION BY LIST (shop);
CREATE TABLE app.turned_2 (number int, shop int, state text);
ALTER TABLE app.turned ATTACH PARTITION app.turned_2 FOR VALUES IN (2);
SELECT count(*) AS x FROM fenceguard.protect('app.turned', 'turned/{shop}') \gset
SELECT is(app.raised(format('SELECT app.claim(%L); INSERT INTO %s (shop, number) VALUES (2, 1)', claimed, target)) LIKE expected, true,
          format('%s: INSERT INTO %s, whose columns are in another order', claimed, target))
  FROM (VALUES ('turned/1', 'TF002 %has not claimed turned/2'), ('turned/2', 'nothing')) AS v(claimed, expected)
  CROSS JOIN unnest('{app.turned,app.turned_2}'::text[]) AS target ORDER BY claimed;
ALTER TABLE app.turned RENAME shop TO swapped;
ALTER TABLE app.turned RENAME number TO shop;
ALTER TABLE app.turned RENAME swapped TO number;
SELECT is(app.raised('SELECT app.claim(''turned/1''), app.claim(''turned/2''); INSERT INTO app.turned (number, shop) VALUES (2, 1)') LIKE 'TF002 %were renamed%', true,
          'two names that were swapped, so that they fit the order of the partition');
SELECT * FROM finish();
