SELECT plan(25);
SELECT fenceguard.reserve_tokens(10) AS t \gset
-- Own claims show while they are open.
BEGIN;
SELECT fenceguard.open_guarded('{t/a,t/b}', ARRAY[:t, :t + 1], '{h,i}', NULL, NULL, NULL, 100, 60000) AS ignored \gset
SELECT results_eq('SELECT resource, token, holder, pid, state, prepared FROM fenceguard.in_flight ORDER BY resource',
  format($$VALUES ('t/a', %s::bigint, 'h', pg_backend_pid(), 'active', NULL::text), ('t/b', %s, 'i', pg_backend_pid(), 'active', NULL)$$, :t, :t + 1), 'in_flight: resource, token, holder, pid');
SELECT ok(age BETWEEN interval '0' AND interval '1 min' AND since = now(), 'and its age') FROM fenceguard.in_flight LIMIT 1;
SELECT is_empty(format('SELECT * FROM fenceguard.evict(''t/a'', %s)', :t), 'evict: not at its own token');
SELECT is_empty(format('SELECT * FROM fenceguard.evict(''t/b'', %s)', :t + 1), 'evict: not for the older token of its other resource');
SELECT is_empty('SELECT * FROM fenceguard.evict(''t/other'', 9007199254740991)', 'evict: not for another resource');
COMMIT;
SELECT is_empty('SELECT * FROM fenceguard.in_flight', 'nothing is in flight after COMMIT');
BEGIN;
SELECT fenceguard.claim('t/a', :t + 2, '0123456789abcdef0123456789abcdef') AS ignored \gset
SELECT results_eq('SELECT resource, token FROM fenceguard.in_flight', format($$VALUES ('t/a', %s::bigint)$$, :t + 2), 'a claim by the hot path shows too');
COMMIT;
SELECT is(app.raised('SELECT fenceguard.evict(NULL, 1)') LIKE '22023 %', true, 'resource must be given');
SELECT is(app.raised('SELECT fenceguard.evict(''r'', NULL)') LIKE '22023 %', true, 'below must be given');

-- What each role may do.
SELECT is(has_function_privilege(:'application', p.oid, 'EXECUTE'), p.proname NOT IN ('evict', 'forget_fences', 'forget_keys', 'raise_floor', 'open_claims', 'advance_counter', 'record_objects'),
          'application: ' || p.proname)
  FROM pg_proc p WHERE p.pronamespace = 'fenceguard'::regnamespace
   AND p.proname IN ('claim', 'open_guarded', 'close_guarded', 'reserve_tokens', 'resolve', 'evict', 'forget_fences', 'forget_keys', 'raise_floor', 'open_claims', 'advance_counter', 'record_objects') ORDER BY p.proname;
SELECT is_empty(format($$SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fenceguard'::regnamespace AND c.relkind = 'r' AND
  has_table_privilege(%L, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')$$, :'application'), 'application: writes no table');
SELECT is_empty(format($$SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'fenceguard'::regnamespace
  AND p.proname IN ('evict', 'forget_fences', 'forget_keys', 'raise_floor', 'open_claims') AND NOT has_function_privilege(%L, p.oid, 'EXECUTE')$$, :'operator'), 'operator: evict, forget, raise the floor');
SELECT is_empty(format($$SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fenceguard'::regnamespace AND c.relkind = 'r' AND
  has_table_privilege(%L, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')$$, :'operator'), 'operator: writes no table');
SELECT is(has_table_privilege(:'operator', 'fenceguard.in_flight', 'SELECT'), true, 'operator: in_flight');
SELECT * FROM finish();
