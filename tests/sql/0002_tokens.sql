SELECT plan(33);

SELECT fenceguard.reserve_tokens(10) AS a \gset
SELECT fenceguard.reserve_tokens(1) AS b \gset
SELECT fenceguard.reserve_tokens(100000000) AS c \gset
SELECT fenceguard.reserve_tokens(1) AS d \gset
SELECT ok(:b >= :a + 10, 'ranges do not overlap');
SELECT ok(:d >= :c + 100000000, 'also the largest ones');
SELECT ok(:a > 1700000000000000, 'tokens start at the clock, in microseconds');
SELECT is(fenceguard.database_identity(), (SELECT s.database_identity FROM fenceguard.server_state s), 'the database says its name');
SELECT is((SELECT next FROM fenceguard.token_counter), :d + 1::bigint, 'next is the first that nobody had');

SELECT is(app.raised('SELECT fenceguard.reserve_tokens(' || n || ')') LIKE '22023 count must be between%', true, 'count ' || n)
  FROM unnest(ARRAY['0', '-1', '100000001', 'NULL']) n;
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)'), '25001 tokens are not reserved inside a savepoint or an exception block',
          'not in a subtransaction, which could be undone alone');
BEGIN;
SAVEPOINT before;
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)') LIKE '25001 %', true, 'nor under a savepoint');
COMMIT;
BEGIN;
CREATE TABLE app.written (id int);
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)'),
          '25001 tokens are reserved in a transaction of their own, and this one has already written', 'not after a write');
ROLLBACK;
SELECT is(app.raised('SELECT fenceguard.raise_floor()') LIKE '25001 %', true, 'raise_floor() has the same rules');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)'), '25001 tokens are reserved in READ COMMITTED only', 'not in REPEATABLE READ');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)') LIKE '25001 %', true, 'not in SERIALIZABLE');
ROLLBACK;

-- A session that does not wait for the disk waits here.
SET synchronous_commit = off;
BEGIN;
SELECT fenceguard.reserve_tokens(1) AS e \gset
SELECT is(current_setting('synchronous_commit'), 'on', 'synchronous_commit is on to the end of the transaction');
COMMIT;
SELECT is(current_setting('synchronous_commit'), 'off', 'and the session''s own afterwards');
SET synchronous_commit = remote_apply;
BEGIN;
SELECT fenceguard.reserve_tokens(1) AS e \gset
SELECT is(current_setting('synchronous_commit'), 'remote_apply', 'what is stricter stays');
COMMIT;
RESET synchronous_commit;

-- A clock that went backwards: the counter guards.
UPDATE fenceguard.token_counter SET next = next + 3600000000;
SELECT next AS ahead FROM fenceguard.token_counter \gset
SELECT fenceguard.reserve_tokens(5) AS f \gset
SELECT is(:f, :ahead::bigint, 'a counter ahead of the clock goes on from where it is');
-- A database that was rolled back: the clock guards.
UPDATE fenceguard.token_counter SET next = 1;
SELECT fenceguard.reserve_tokens(1) AS g \gset
SELECT ok(:g > :d - 200000000, 'a counter that was rolled back starts at the clock');
UPDATE fenceguard.token_counter SET next = :ahead;

-- The clock of the year 2201, by a copy of the function with another clock.
SELECT replace(pg_get_functiondef('fenceguard.advance_counter'::regproc), 'clock_timestamp()', '''2201-01-01 UTC''::timestamptz') AS d \gset
SELECT pg_get_functiondef('fenceguard.advance_counter'::regproc) AS original \gset
:d;
SELECT is(app.raised('SELECT fenceguard.reserve_tokens(1)') LIKE '55000 the server''s clock says%', true, 'a clock after 2200 issues nothing');
:original;
SELECT is_empty('SELECT * FROM fenceguard.altered_objects()', 'the function is as it was');
SELECT is((SELECT next FROM fenceguard.token_counter), :ahead::bigint, 'and nothing was moved');

-- Promotion: another timeline. Leaps by 2^32 on the clock, sets the floor, and does so once.
SELECT next AS before FROM fenceguard.token_counter \gset
UPDATE fenceguard.server_state SET timeline = '0000007F';
SELECT fenceguard.reserve_tokens(1) AS promoted \gset
SELECT ok(:promoted >= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 4294967296 - 60000000 AND :promoted >= :before,
          'after a promotion tokens are the margin ahead of the clock');
SELECT is((SELECT floor FROM fenceguard.server_state), :promoted::bigint, 'and everything before them is below the floor');
SELECT is((SELECT timeline FROM fenceguard.server_state), (SELECT timeline FROM fenceguard.current_server()), 'the new identity is stored');
SELECT fenceguard.reserve_tokens(1) AS next_one \gset
SELECT is(:next_one, :promoted + 1::bigint, 'the next reservation leaps no more');
-- Another cluster, another database, a restored dump.
UPDATE fenceguard.server_state SET system_identifier = system_identifier + 1;
SELECT fenceguard.reserve_tokens(1) AS h \gset
SELECT is((SELECT floor FROM fenceguard.server_state), :h::bigint, 'another system identifier raises the floor');
UPDATE fenceguard.server_state SET counter_oid = 1;
SELECT fenceguard.reserve_tokens(1) AS i \gset
SELECT is((SELECT floor FROM fenceguard.server_state), :i::bigint, 'a restored table raises the floor');
UPDATE fenceguard.server_state SET database_oid = 1;
SELECT fenceguard.reserve_tokens(1) AS j \gset
SELECT is((SELECT floor FROM fenceguard.server_state), :j::bigint, 'a copied database raises the floor');

-- Two standbys promoted one after the other from one primary: the later clock is higher whatever each had in its counter.
SELECT fenceguard.raise_floor() AS first_floor \gset
SELECT fenceguard.raise_floor() AS second_floor \gset
SELECT ok(:second_floor >= :first_floor, 'raise_floor() never lowers');
SELECT fenceguard.reserve_tokens(1) AS k \gset
SELECT is(:k, :second_floor::bigint, 'the first token after it is the floor itself');
SELECT is(app.raised('UPDATE fenceguard.token_counter SET next = 9007199254740993') LIKE '23514 %', true, 'the counter ends at 2^53');
UPDATE fenceguard.server_state SET floor = 0;
UPDATE fenceguard.token_counter SET next = 1;
SELECT * FROM finish();
