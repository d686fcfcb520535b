-- Every way to write a protected table that is known. The tables are their owner's; who writes has the application's role.
CREATE FUNCTION app.claim(resource text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fenceguard.claim(resource, current_setting('test.token')::bigint, 'holder');
END $$;
GRANT EXECUTE ON FUNCTION app.claim(text) TO PUBLIC;
SELECT fenceguard.reserve_tokens(1) AS token \gset
SELECT set_config('test.token', :'token', false) AS x \gset
CREATE TABLE app.account (id int PRIMARY KEY, balance bigint NOT NULL, note text);
INSERT INTO app.account SELECT g, 100 FROM generate_series(1, 20) AS g;
CREATE TABLE app.customer (id int PRIMARY KEY, name text);
CREATE TABLE app.card (number int PRIMARY KEY, customer int REFERENCES app.customer ON UPDATE CASCADE ON DELETE CASCADE, kind text);
CREATE TABLE app.visit (id int PRIMARY KEY, customer int REFERENCES app.customer ON UPDATE CASCADE ON DELETE SET NULL);
INSERT INTO app.customer SELECT g, 'c' FROM generate_series(1, 9) AS g;
INSERT INTO app.card SELECT g, g, 'k' FROM generate_series(1, 9) AS g;
INSERT INTO app.visit SELECT g, g FROM generate_series(1, 9) AS g;
CREATE TABLE app.log (what text);
CREATE TABLE app.rules (id int PRIMARY KEY);
INSERT INTO app.rules VALUES (1);
CREATE VIEW app.account_view AS SELECT id, balance FROM app.account;
CREATE TABLE app.hidden (id int PRIMARY KEY, owner text);
INSERT INTO app.hidden VALUES (1, 'somebody'), (2, 'nobody');
ALTER TABLE app.hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_writes ON app.hidden FOR UPDATE USING (true);
CREATE POLICY few_reads ON app.hidden FOR SELECT USING (owner = 'somebody');
CREATE POLICY deletes ON app.hidden FOR DELETE USING (true);
CREATE TABLE app.identity (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, twice int, k int GENERATED ALWAYS AS (twice / 2) STORED);
-- a BEFORE trigger of the user's that sorts last and moves the row to another key
CREATE TABLE app.shifted (id int PRIMARY KEY, n int);
INSERT INTO app.shifted VALUES (1, 1), (2, 2);
CREATE FUNCTION app.shift() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id := NEW.id + 100; RETURN NEW; END $$;
CREATE TRIGGER zzz_shift BEFORE INSERT OR UPDATE ON app.shifted FOR EACH ROW EXECUTE FUNCTION app.shift();
-- AFTER triggers of the user's, before and after the check by name, that claim what should have been claimed
CREATE TABLE app.late (id int PRIMARY KEY, n int);
INSERT INTO app.late VALUES (1, 1);
CREATE FUNCTION app.claim_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.claim('late/1');
  RETURN NEW;
END $$;
CREATE TRIGGER a_claim BEFORE UPDATE ON app.late FOR EACH STATEMENT EXECUTE FUNCTION app.claim_late();
CREATE TRIGGER b_claim BEFORE UPDATE ON app.late FOR EACH ROW EXECUTE FUNCTION app.claim_late();
CREATE TRIGGER c_claim AFTER UPDATE ON app.late FOR EACH ROW EXECUTE FUNCTION app.claim_late();
CREATE CONSTRAINT TRIGGER d_claim AFTER UPDATE ON app.late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.claim_late();
CREATE FUNCTION app.claim_and_write(resource text, statement text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM app.claim(resource);
  EXECUTE statement;
END $$;
SELECT count(*) AS x FROM (VALUES ('account', 'account/{id}'), ('card', 'customer/{customer}'), ('visit', 'visit/{customer}'),
  ('hidden', 'hidden/{id}'), ('identity', 'identity/{k}'), ('shifted', 'shifted/{id}'), ('late', 'late/{id}'), ('rules', 'rules/{id}'))
  AS v(t, template), LATERAL fenceguard.protect(('app.' || t)::regclass, template) \gset
CREATE RULE account_log AS ON UPDATE TO app.rules DO ALSO UPDATE app.account SET balance = -1 WHERE id = 2;
GRANT ALL ON ALL TABLES IN SCHEMA app TO :application;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA app TO :application;
SELECT current_setting('server_version_num')::int >= 150000 AS has_merge \gset

\connect - :application
SELECT set_config('test.token', :'token', false) AS x \gset
SELECT plan(58);
SELECT is(current_user::text, :'application', 'as the application''s role');
SELECT is(app.raised(s) LIKE 'TF002 unguarded write to app.account: this transaction has not claimed account/%', true, s)
  FROM unnest(ARRAY['UPDATE app.account SET balance = 0 WHERE id = 1', 'UPDATE app.account SET balance = 0',
    'INSERT INTO app.account VALUES (50, 0)', 'INSERT INTO app.account SELECT g FROM generate_series(60, 80) AS g',
    'DELETE FROM app.account WHERE id = 1', 'DELETE FROM app.account',
    'INSERT INTO app.account VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET balance = 0',
    'INSERT INTO app.account VALUES (51, 0) ON CONFLICT DO NOTHING',
    'WITH w AS (UPDATE app.account SET balance = 0 WHERE id = 1 RETURNING 1) SELECT * FROM w',
    'UPDATE app.account_view SET balance = 0 WHERE id = 1', 'INSERT INTO app.account_view VALUES (52, 0)',
    'DELETE FROM app.account_view WHERE id = 1',
    'SELECT app.claim(''rules/1''); UPDATE app.rules SET id = 1']) AS s
  WHERE s NOT LIKE 'INSERT INTO app.account SELECT%';
SELECT is(app.raised('INSERT INTO app.account SELECT g, 0 FROM generate_series(60, 80) AS g') LIKE 'TF002 %', true, 'INSERT of many rows');
SELECT is(app.raised('TRUNCATE app.account') LIKE 'TF002 %is not truncated', true, 'TRUNCATE');
SELECT is(app.raised('TRUNCATE app.customer CASCADE') LIKE 'TF002 %is not truncated', true, 'TRUNCATE ... CASCADE of a table it refers to');
SELECT is((SELECT count(*) FROM app.account WHERE balance <> 100), 0::bigint, 'nothing of it was written');
\if :has_merge
SELECT is(app.raised('MERGE INTO app.account AS a USING (VALUES (1)) AS v(id) ON a.id = v.id WHEN MATCHED THEN ' || action) LIKE 'TF002 %',
          true, 'MERGE ... ' || action) FROM unnest('{UPDATE SET balance = 0,DELETE}'::text[]) AS action;
SELECT is(app.raised('MERGE INTO app.account AS a USING (VALUES (53)) AS v(id) ON a.id = v.id WHEN NOT MATCHED THEN INSERT VALUES (53, 0)')
          LIKE 'TF002 %', true, 'MERGE ... INSERT');
SELECT is(app.raised($$SELECT app.claim('account/3'); MERGE INTO app.account AS a USING (VALUES (3)) AS v(id) ON a.id = v.id
          WHEN MATCHED THEN UPDATE SET balance = 1$$), 'nothing', 'MERGE after the claim');
\else
SELECT skip('this server has no MERGE', 4);
\endif
SELECT is(app.raised($$SELECT app.claim('account/54'); INSERT INTO app.account VALUES (54, 0), (55, 0)$$) LIKE 'TF002 %claimed account/55', true, 'one of two rows');
-- COPY from the client is no statement for raised(), and its error would end this script: another psql does it.
\set copied `printf '54,0\n55,0\n' | psql -qX -U $application -d $database -v VERBOSITY=verbose -c "COPY app.account (id, balance) FROM STDIN CSV" 2>&1`
SELECT matches(:'copied'::text, 'ERROR:  TF002: unguarded write to app.account', 'COPY');
BEGIN;
SELECT app.claim('account/54') AS x, app.claim('account/55') AS y \gset
COPY app.account (id, balance) FROM STDIN (DELIMITER ',');
54,0
55,0
\.
COMMIT;
SELECT is((SELECT count(*) FROM app.account WHERE id IN (54, 55)), 2::bigint, 'COPY after the claims');

-- One claim opens one row; an UPDATE of the key needs both.
SELECT is(app.raised($$SELECT app.claim('account/1'); UPDATE app.account SET balance = 7 WHERE id IN (1, 2)$$) LIKE 'TF002 %claimed account/2', true, 'a claim of one row does not open another');
SELECT is(app.raised($$SELECT app.claim('account/1'); UPDATE app.account SET balance = 7 WHERE id = 1$$), 'nothing', 'a claim opens its row');
SELECT is(app.raised($$SELECT app.claim('account/1'); UPDATE app.account SET id = 201 WHERE id = 1$$) LIKE 'TF002 %claimed account/201', true, 'a new key needs a claim');
SELECT is(app.raised($$SELECT app.claim('account/201'); UPDATE app.account SET id = 201 WHERE id = 1$$) LIKE 'TF002 %claimed account/1', true, 'and the old one');
SELECT is(app.raised($$SELECT app.claim('account/1'), app.claim('account/201'); UPDATE app.account SET id = 201 WHERE id = 1$$), 'nothing', 'both claimed');
SELECT is(app.raised($$SELECT app.claim('account/3'); INSERT INTO app.account VALUES (3, 9) ON CONFLICT (id) DO UPDATE SET id = 4000$$) LIKE 'TF002 %claimed account/4000', true, 'ON CONFLICT DO UPDATE that changes the key');

-- A claim that is not of this transaction, or was undone, or comes too late.
BEGIN;
SELECT app.claim('account/5') AS x \gset
COMMIT;
SELECT is(app.raised('UPDATE app.account SET balance = 7 WHERE id = 5') LIKE 'TF002 %', true, 'a claim of an earlier transaction');
BEGIN;
SAVEPOINT s;
SELECT app.claim('account/5') AS x \gset
ROLLBACK TO s;
SELECT is(app.raised('UPDATE app.account SET balance = 7 WHERE id = 5') LIKE 'TF002 %', true, 'a claim that was rolled back to a savepoint');
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT app.claim('account/5') AS x \gset
RELEASE s;
SELECT is(app.raised('UPDATE app.account SET balance = 7 WHERE id = 5'), 'nothing', 'a claim in a savepoint that was released');
COMMIT;
SELECT is(app.raised($$WITH c AS MATERIALIZED (SELECT app.claim('account/6')) UPDATE app.account SET balance = 7 FROM c WHERE id = 6$$) LIKE 'TF002 %', true, 'a claim in a CTE of the writing statement');
SELECT is(app.raised($$UPDATE app.account SET balance = 7 WHERE id = 6 AND app.claim('account/6') IS NOT NULL$$) LIKE 'TF002 %', true, 'a claim in its WHERE');
SELECT is(app.raised($$UPDATE app.account SET balance = 7 WHERE id = 6 RETURNING app.claim('account/6')$$) LIKE 'TF002 %', true, 'a claim in its RETURNING');
SELECT is(app.raised($$INSERT INTO app.account SELECT 56, 0, app.claim('account/56')::text$$) LIKE 'TF002 %', true, 'a claim in its source');
SELECT is(app.raised('UPDATE app.late SET n = 2') LIKE 'TF002 %', true, 'a claim in triggers of the writing statement, deferred ones too');
SELECT is(app.raised($$SELECT app.claim_and_write('account/6', 'UPDATE app.account SET balance = 8 WHERE id = 6')$$), 'nothing', 'a function that claims, then writes in a statement of its own');
SELECT is(app.raised($$SELECT app.claim_and_write('account/6', 'UPDATE app.account SET balance = 8 WHERE id = 7')$$) LIKE 'TF002 %', true, 'but only its row');

-- Triggers that change the row, cascades, row security, generated keys.
SELECT is(app.raised($$SELECT app.claim('shifted/1'); UPDATE app.shifted SET n = 5 WHERE id = 1$$) LIKE 'TF002 %claimed shifted/101', true, 'a later BEFORE trigger that changes the key of an UPDATE');
SELECT is(app.raised($$SELECT app.claim('shifted/5'); INSERT INTO app.shifted VALUES (5, 5)$$) LIKE 'TF002 %claimed shifted/105', true, 'and of an INSERT');
SELECT is(app.raised('DELETE FROM app.customer WHERE id = 1') LIKE 'TF002 %', true, 'ON DELETE CASCADE into a protected table');
SELECT is(app.raised('UPDATE app.customer SET id = 1001 WHERE id = 1') LIKE 'TF002 %', true, 'ON UPDATE CASCADE');
SELECT is(app.raised($$SELECT app.claim('customer/1'), app.claim('visit/1'); UPDATE app.customer SET id = 1001 WHERE id = 1$$) LIKE 'TF002 %/1001', true, 'the new key too');
SELECT is(app.raised($$SELECT app.claim('customer/2'); DELETE FROM app.customer WHERE id = 2$$) LIKE 'TF002 %visit%', true, 'ON DELETE SET NULL');
SELECT is(app.raised($$SELECT app.claim('customer/3'), app.claim('visit/3'), app.claim('customer/1003'), app.claim('visit/1003'); UPDATE app.customer SET id = 1003 WHERE id = 3$$), 'nothing', 'cascades with all claims');
SELECT is((SELECT count(*) FROM app.card c JOIN app.customer u ON u.id = c.customer), 9::bigint, 'nothing was torn');
SELECT is(app.raised('DELETE FROM app.hidden') LIKE 'TF002 %', true, 'rows that row security hides from the writer''s SELECT');
SELECT is(app.raised($$SELECT app.claim('identity/4'); INSERT INTO app.identity (twice) VALUES (8)$$), 'nothing', 'a key that is generated');
SELECT is(app.raised($$SELECT app.claim('identity/4'); INSERT INTO app.identity (twice) VALUES (18)$$) LIKE 'TF002 %/9', true, 'and its refusal');
SELECT is(app.raised($$SET LOCAL session_replication_role = replica$$) LIKE '42501 %', true, 'session_replication_role is not the application''s to set');
SELECT is(app.raised('ALTER TABLE app.account DISABLE TRIGGER ALL') LIKE '42501 %', true, 'nor are the triggers');
SELECT is(app.raised($$SELECT fenceguard.unprotect('app.account')$$) LIKE '42501 %', true, 'nor is unprotect');
SELECT is(app.raised($$INSERT INTO fenceguard.fence VALUES ('account/7', 1, 'x', pg_current_xact_id(), now())$$) LIKE '42501 %', true, 'nor is the fence');
-- a temporary table, an operator and a function of the writer's own do not fool the check
CREATE TEMP TABLE fence AS SELECT 'account/7'::text AS resource, pg_current_xact_id() AS claimed_xid, now() AS claimed_at;
SET search_path = pg_temp, app, tap, pg_catalog;
SELECT is(app.raised('UPDATE app.account SET balance = 7 WHERE id = 7') LIKE 'TF002 %', true, 'a temporary table named fence');

-- Empty statements cost no claim.
SELECT is(app.raised('UPDATE app.account SET balance = 7 WHERE id = -1'), 'nothing', 'an UPDATE of no row');
SELECT is(app.raised('DELETE FROM app.account WHERE false'), 'nothing', 'a DELETE of no row');
SELECT * FROM finish();
