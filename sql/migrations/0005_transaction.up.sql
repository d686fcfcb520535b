-- 0005: opening and closing a guarded transaction.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(5, 'transaction');

-- The one entrance: sent with BEGIN in one message. In this order:
--   1. the idempotency key, if any (scope and key NULL: none): its lock, then the look-up, each a statement of its own. A
--      stored answer to the same request is returned, replayed is true, and nothing is claimed, so that a repeat gets
--      it also from a holder that has become stale. Another request: TF003. Still being carried out: TF005.
--   2. each resource in bytewise order of its name: its locks, then its row. Stale: TF001. Held by another: TF006.
--   3. the floors and the server's identity, read after the rows are ours, in a statement of its own. Read before,
--      forget_fences() could raise the bound in between.
-- A claim must be a statement of its own, never part of the statement that reads or writes what it guards: that
-- statement's snapshot would be from before the claim.
--
-- patience_ms bounds the waits for locks (NULL: the session's lock_timeout). max_idle_ms bounds how long the server lets
-- the transaction sit idle, or its client not receive, before it ends it (NULL: 30 s; what is tighter stays).
--
-- Locks: one exclusive advisory lock per resource is the one fair wait. It shows in pg_locks also for a resource without a
-- row, where a wait for the row would be two waits and up to twice the timeout. Two shared ones publish which token
-- claims which resource, for in_flight and evict(): the token with bit 62 set, and, with the sign bit set, a hash of
-- both. The row stays the real guard.
--
-- The first part is the hot path: one resource, whose row exists, nobody in the way. It should cost what SELECT FOR
-- UPDATE costs by hand. PL/pgSQL prepares each expression anew in every transaction, so the path has few and large
-- ones, and calls nothing but built-in functions. Whatever is not as expected falls through to the second part, which
-- does all of it again step by step (taking a lock twice is harmless) and knows all the reasons to refuse.
CREATE FUNCTION fenceguard.open_guarded(
  resources text[], tokens bigint[], holders text[],
  scope text, key text, request json,
  patience_ms int, max_idle_ms int,
  OUT replayed bool, OUT answer json, OUT fingerprint bytea,
  OUT xid xid8, OUT started_at timestamptz,
  OUT previous_xids xid8[], OUT previous_ats timestamptz[],  -- in the order of the arguments
  OUT database_identity text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan  -- all access is by primary key; planning again would cost more than the rest
AS $$
DECLARE
  stored_fingerprint bytea;
  accepted bool;
  tightened bool;
BEGIN
  IF key IS NOT NULL OR scope IS NOT NULL THEN
    IF octet_length(key) BETWEEN 1 AND 512 AND octet_length(scope) <= 255 AND request IS NOT NULL
       AND (patience_ms >= 0) IS NOT FALSE THEN
      fingerprint := sha256(convert_to(request::jsonb::text, 'UTF8'));
    ELSE
      PERFORM fenceguard.check_key(scope, key);
      RAISE EXCEPTION 'request must be given and patience_ms must not be negative'
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended(key, hashtextextended(scope, 7038329))) THEN
      patience_ms := fenceguard.await_key(scope, key, patience_ms);
    END IF;
    SELECT k.fingerprint, k.answer INTO stored_fingerprint, answer FROM fenceguard.idempotency k
     WHERE k.scope = open_guarded.scope AND k.key = open_guarded.key;
    IF FOUND THEN
      IF stored_fingerprint <> fingerprint THEN
        RAISE EXCEPTION 'idempotency key reused: key % of scope % was stored for another request', key, scope
          USING ERRCODE = 'TF003', HINT = 'A key stands for one request. Use a new key for a new request.';
      END IF;
      replayed := true;
      RETURN;
    END IF;
  END IF;

  -- A row that exists has a name of legal length, and a token below 1 beats no row: neither is tested here.
  IF cardinality(resources) = 1 AND cardinality(tokens) = 1 AND cardinality(holders) = 1
     AND octet_length(holders[1]) = 32
     AND tokens[1] < date_part('epoch', CURRENT_TIMESTAMP) * 1000000
     AND (least(patience_ms, max_idle_ms - 1) >= 0) IS NOT FALSE
     AND pg_try_advisory_xact_lock(hashtextextended(resources[1], 439788397413))
     AND pg_try_advisory_xact_lock_shared(4611686018427387904 | tokens[1])
     AND pg_try_advisory_xact_lock_shared(hashtextextended(resources[1], tokens[1]) | (1::bigint << 63)) THEN
    UPDATE fenceguard.fence f
       SET token = tokens[1], holder = holders[1], claimed_xid = pg_current_xact_id(), claimed_at = CURRENT_TIMESTAMP,
           previous_xid = f.claimed_xid, previous_at = f.claimed_at
     WHERE f.resource = resources[1] AND (f.token < tokens[1] OR (f.token = tokens[1] AND f.holder = holders[1]))
           AND f.claimed_at <> CURRENT_TIMESTAMP  -- a second claim in one transaction is not for this path
     RETURNING false, f.claimed_xid, f.claimed_at, ARRAY[f.previous_xid], ARRAY[f.previous_at]
      INTO replayed, xid, started_at, previous_xids, previous_ats;
    IF FOUND THEN
      SELECT s.database_identity,
             s.floor <= tokens[1] AND s.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
             AND s.counter_oid = 'fenceguard.token_counter'::regclass,
             -- No TCP, and no timeout in the session: set it at once.
             inet_client_addr() IS NULL AND current_setting('idle_in_transaction_session_timeout') = '0'
             AND set_config('idle_in_transaction_session_timeout', coalesce(max_idle_ms, 30000)::text, true) <> ''
        INTO database_identity, accepted, tightened FROM fenceguard.server_state s;
      IF accepted THEN
        IF NOT tightened THEN
          PERFORM fenceguard.tighten_timeouts(coalesce(max_idle_ms, 30000));
        END IF;
        RETURN;
      END IF;
    END IF;
  END IF;

  SELECT false, c.* INTO replayed, xid, started_at, previous_xids, previous_ats, database_identity
    FROM fenceguard.claim_all(resources, tokens, holders, key IS NULL, patience_ms, max_idle_ms) c;
END $$;
COMMENT ON FUNCTION fenceguard.open_guarded(text[], bigint[], text[], text, text, json, int, int) IS
  'Opens a guarded transaction: replays a stored answer or claims the resources. TF001 stale, TF003 key reused, TF004 server changed, TF005 in progress, TF006 busy.';

-- The whole claim, step by step: any number of resources, rows that are not there yet, every reason to refuse. Repeats
-- harmlessly what the hot path of open_guarded() has done in this transaction.
CREATE FUNCTION fenceguard.claim_all(
  resources text[], tokens bigint[], holders text[], at_least_one bool, patience_ms int, max_idle_ms int,
  OUT xid xid8, OUT started_at timestamptz, OUT previous_xids xid8[], OUT previous_ats timestamptz[],
  OUT database_identity text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  visit int[];
  i int;
  inserted int[];
  written record;
  state record;
BEGIN
  visit := fenceguard.check_claims(resources, tokens, holders, at_least_one, patience_ms, max_idle_ms);
  xid := pg_current_xact_id();
  started_at := now();
  FOREACH i IN ARRAY visit LOOP
    IF NOT pg_try_advisory_xact_lock(hashtextextended(resources[i], 439788397413)) THEN
      patience_ms := fenceguard.await_fence(resources[i], patience_ms);
    END IF;
    PERFORM pg_advisory_xact_lock_shared(4611686018427387904 | tokens[i]),
            pg_advisory_xact_lock_shared(hashtextextended(resources[i], tokens[i]) | (1::bigint << 63));
    written := fenceguard.write_fence(resources[i], tokens[i], holders[i]);
    previous_xids[i] := written.previous_xid;
    previous_ats[i] := written.previous_at;
    IF written.inserted THEN
      inserted := inserted || i;
    END IF;
  END LOOP;
  PERFORM fenceguard.tighten_timeouts(coalesce(max_idle_ms, 30000));

  IF inserted IS NOT NULL AND current_setting('transaction_isolation') <> 'read committed' THEN
    PERFORM FROM fenceguard.server_state FOR SHARE;  -- 40001 if forget_fences() committed since the snapshot
  END IF;
  SELECT s.floor, s.forgotten, s.database_identity,
         s.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
         AND s.counter_oid = 'fenceguard.token_counter'::regclass AS same_server
    INTO STRICT state FROM fenceguard.server_state s;
  database_identity := state.database_identity;
  IF NOT state.same_server THEN
    RAISE EXCEPTION 'the server was promoted or restored'
      USING ERRCODE = 'TF004', HINT = 'Call fenceguard.reserve_tokens(1) on a connection of its own, then try again.';
  END IF;
  FOREACH i IN ARRAY visit LOOP
    IF tokens[i] < state.floor THEN
      RAISE EXCEPTION 'stale token: presented %, current %, resource %', tokens[i], state.floor, resources[i]
        USING ERRCODE = 'TF001', DETAIL = 'floor: the grant is from before a promotion or restore of the server',
              HINT = 'Acquire the lease again.';
    ELSIF tokens[i] <= state.forgotten AND i = ANY (inserted) THEN
      RAISE EXCEPTION 'stale token: presented %, current %, resource %', tokens[i], state.forgotten, resources[i]
        USING ERRCODE = 'TF001', DETAIL = 'forgotten: the fence of a grant as new as this one was deleted for its age',
              HINT = 'Take a fresh token for the same grant, or acquire the lease again.';
    END IF;
  END LOOP;
END $$;

-- Raises the fence's row, or makes it. The resource's advisory lock is held.
CREATE FUNCTION fenceguard.write_fence(
  resource text, new_token bigint, new_holder text,
  OUT inserted bool, OUT previous_xid xid8, OUT previous_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  current_token bigint;
  current_holder text;
BEGIN
  inserted := false;
  LOOP
    UPDATE fenceguard.fence f
       SET token = new_token, holder = new_holder, claimed_xid = pg_current_xact_id(), claimed_at = now(),
           -- A second claim in one transaction found what the first one found.
           previous_xid = CASE WHEN f.claimed_xid = pg_current_xact_id() AND f.claimed_at = now()
                               THEN f.previous_xid ELSE f.claimed_xid END,
           previous_at = CASE WHEN f.claimed_xid = pg_current_xact_id() AND f.claimed_at = now()
                              THEN f.previous_at ELSE f.claimed_at END
     WHERE f.resource = write_fence.resource
           AND (f.token < new_token OR (f.token = new_token AND f.holder = new_holder))
     RETURNING f.previous_xid, f.previous_at INTO previous_xid, previous_at;
    IF FOUND THEN
      RETURN;
    END IF;
    INSERT INTO fenceguard.fence(resource, token, holder, claimed_xid, claimed_at)
      VALUES (write_fence.resource, new_token, new_holder, pg_current_xact_id(), now()) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      inserted := true;
      RETURN;
    END IF;
    SELECT f.token, f.holder INTO current_token, current_holder
      FROM fenceguard.fence f WHERE f.resource = write_fence.resource;
    IF current_token > new_token OR (current_token = new_token AND current_holder <> new_holder) THEN
      RAISE EXCEPTION 'stale token: presented %, current %, resource %', new_token, current_token, resource
        USING ERRCODE = 'TF001', DETAIL = 'holder ' || current_holder,
              HINT = 'Another grant has claimed the resource since. Acquire the lease again.';
    END IF;
    -- Deleted by forget_fences() in between: once more.
  END LOOP;
END $$;

-- Refuses bad arguments; gives the order in which to claim.
CREATE FUNCTION fenceguard.check_claims(
  resources text[], tokens bigint[], holders text[], at_least_one bool, patience_ms int, max_idle_ms int)
RETURNS int[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number_of_resources int := cardinality(resources);
  i int;
BEGIN
  IF number_of_resources IS NULL OR cardinality(tokens) IS DISTINCT FROM number_of_resources
     OR cardinality(holders) IS DISTINCT FROM number_of_resources THEN
    RAISE EXCEPTION 'resources, tokens and holders must be arrays of one length'
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF number_of_resources = 0 AND at_least_one THEN
    RAISE EXCEPTION 'a resource or an idempotency key must be given' USING ERRCODE = 'invalid_parameter_value';
  ELSIF patience_ms < 0 OR max_idle_ms < 1 THEN
    RAISE EXCEPTION 'patience_ms must not be negative and max_idle_ms must be positive'
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF number_of_resources <> (SELECT count(DISTINCT r) FROM unnest(resources) r) THEN
    RAISE EXCEPTION 'each resource must be given, and once' USING ERRCODE = 'invalid_parameter_value';
  ELSIF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'this server is a standby: it cannot claim' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  FOR i IN 1 .. number_of_resources LOOP
    IF octet_length(resources[i]) NOT BETWEEN 1 AND 512 THEN
      RAISE EXCEPTION 'a resource''s name must have 1 to 512 bytes, not %', octet_length(resources[i])
        USING ERRCODE = 'invalid_parameter_value';
    ELSIF tokens[i] IS NULL OR tokens[i] NOT BETWEEN 1 AND 9007199254740991 THEN
      RAISE EXCEPTION 'a token must be between 1 and 9007199254740991, not %', coalesce(tokens[i]::text, 'null')
        USING ERRCODE = 'invalid_parameter_value';
    ELSIF holders[i] IS NULL OR octet_length(holders[i]) NOT BETWEEN 1 AND 128 THEN
      RAISE EXCEPTION 'a holder must have 1 to 128 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF tokens[i] > date_part('epoch', clock_timestamp()) * 1000000 THEN
      PERFORM fenceguard.check_issued(tokens[i]);
    END IF;
  END LOOP;
  RETURN ARRAY(SELECT r.position FROM unnest(resources) WITH ORDINALITY AS r(resource, position)
                ORDER BY r.resource COLLATE "C");
END $$;

-- The server ends a holder that is paused while idle; on TCP also one that is paused while it is being sent to. For this
-- transaction only, and only downwards.
CREATE FUNCTION fenceguard.tighten_timeouts(bound_ms int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  timeout text := current_setting('idle_in_transaction_session_timeout');
BEGIN
  IF timeout = '0' OR timeout::interval > bound_ms * interval '1 ms' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', bound_ms::text, true);
  END IF;
  IF inet_client_addr() IS NOT NULL THEN
    timeout := current_setting('tcp_user_timeout');
    IF timeout = '0' OR timeout::interval > bound_ms * interval '1 ms' THEN
      PERFORM set_config('tcp_user_timeout', bound_ms::text, true);
    END IF;
  END IF;
END $$;

-- A token that nobody was given would shut out everybody for ever. One above the clock is right only where the counter
-- has run ahead of it: within a fresh block, or after a promotion.
CREATE FUNCTION fenceguard.check_issued(token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    -- 40001 if the counter has moved since the snapshot. KEY SHARE does not hold up issuers.
    PERFORM FROM fenceguard.token_counter FOR KEY SHARE;
  END IF;
  IF token >= (SELECT c.next FROM fenceguard.token_counter c) THEN
    RAISE EXCEPTION 'token % was never issued', token
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Tokens come from fenceguard.reserve_tokens().';
  END IF;
END $$;

-- One resource, no key: for psql and other languages.
CREATE FUNCTION fenceguard.claim(
  resource text, token bigint, holder text, patience_ms int DEFAULT NULL, max_idle_ms int DEFAULT NULL,
  OUT claimed_xid xid8, OUT claimed_at timestamptz, OUT previous_xid xid8, OUT previous_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT o.xid, o.started_at, o.previous_xids[1], o.previous_ats[1]
    INTO claimed_xid, claimed_at, previous_xid, previous_at
    FROM fenceguard.open_guarded(ARRAY[resource], ARRAY[token], ARRAY[holder], NULL, NULL, NULL,
                                 patience_ms, max_idle_ms) o;
END $$;
COMMENT ON FUNCTION fenceguard.claim(text, bigint, text, int, int) IS
  'Raises the fence of a resource to the token; the first statement of the transaction that reads and writes what it guards.';

CREATE FUNCTION fenceguard.replay(
  scope text, key text, request json, patience_ms int DEFAULT NULL,
  OUT replayed bool, OUT answer json, OUT fingerprint bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF key IS NULL THEN
    RAISE EXCEPTION 'key must be given' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT o.replayed, o.answer, o.fingerprint INTO replayed, answer, fingerprint
    FROM fenceguard.open_guarded('{}', '{}', '{}', scope, key, request, patience_ms, NULL) o;
END $$;
COMMENT ON FUNCTION fenceguard.replay(text, text, json, int) IS
  'Locks the key to the end of the transaction and returns the stored answer, if there is one. Call it before the claim.';

-- Sent with COMMIT in one message. The transaction's number tells a connection that was lost and opened again, or a
-- transaction that ended unseen: nothing may be stored in the name of what was rolled back.
CREATE FUNCTION fenceguard.close_guarded(
  xid xid8, scope text, key text, fingerprint bytea, answer json, token bigint, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
  IF xid IS NULL OR pg_current_xact_id_if_assigned() IS DISTINCT FROM xid THEN
    RAISE EXCEPTION 'the guarded transaction has ended' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  IF key IS NOT NULL THEN
    IF octet_length(fingerprint) IS DISTINCT FROM 32 OR octet_length(key) > 512 OR octet_length(scope) > 255
       OR retention < interval '0' THEN
      RAISE EXCEPTION 'scope, key, fingerprint must be those of open_guarded(), and retention not negative'
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO fenceguard.idempotency(scope, key, fingerprint, answer, token, expires_at)
      VALUES (close_guarded.scope, close_guarded.key, close_guarded.fingerprint, close_guarded.answer,
              close_guarded.token, CURRENT_TIMESTAMP + retention);
  END IF;
END $$;
COMMENT ON FUNCTION fenceguard.close_guarded(xid8, text, text, bytea, json, bigint, interval) IS
  'The last statement before COMMIT: stores the answer under the key, if there is one. 25000 when the transaction is another one.';

-- A whole guarded transaction in one message of the simple protocol, whose statements are one implicit transaction:
--
--   SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
--   SELECT fenceguard.execute_once_open(...);
--   WITH applied AS (UPDATE ... RETURNING ...), answer AS (SELECT coalesce(json_agg(applied), '[]') AS a FROM applied)
--     SELECT a, fenceguard.execute_once_close(..., a, ...) FROM answer;
--
-- The client cannot branch in the middle, so a replay is an error, TF007, with the stored answer, whole, as its DETAIL; it
-- ends the message before the business statement. That one sits in a WITH of the statement that stores its rows: they
-- are in the database already, and the last result of the message is the answer. The claim is a statement of its own
-- before it, as it must be.
CREATE FUNCTION fenceguard.execute_once_open(
  resources text[], tokens bigint[], holders text[], scope text, key text, request json,
  patience_ms int, max_idle_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  opened record;
BEGIN
  PERFORM fenceguard.check_key(scope, key);
  opened := fenceguard.open_guarded(resources, tokens, holders, scope, key, request, patience_ms, max_idle_ms);
  IF opened.replayed THEN
    RAISE EXCEPTION 'replayed: key % of scope % was answered before', key, scope
      USING ERRCODE = 'TF007', DETAIL = coalesce(opened.answer::text, 'null');
  END IF;
END $$;
COMMENT ON FUNCTION fenceguard.execute_once_open(text[], bigint[], text[], text, text, json, int, int) IS
  'As open_guarded(), for a transaction in one message: a stored answer is raised (TF007, the answer in the DETAIL).';

CREATE FUNCTION fenceguard.execute_once_close(
  scope text, key text, request json, answer json, token bigint, retention interval, OUT database_identity text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
  IF pg_current_xact_id_if_assigned() IS NULL THEN
    RAISE EXCEPTION 'execute_once_open() has not run in this transaction' USING ERRCODE = 'invalid_transaction_state';
  ELSIF request IS NULL OR retention < interval '0' THEN
    RAISE EXCEPTION 'request must be given and retention must not be negative'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM fenceguard.check_key(scope, key);
  INSERT INTO fenceguard.idempotency(scope, key, fingerprint, answer, token, expires_at)
    VALUES (execute_once_close.scope, execute_once_close.key,
            sha256(convert_to(execute_once_close.request::jsonb::text, 'UTF8')), execute_once_close.answer,
            execute_once_close.token, CURRENT_TIMESTAMP + retention);
  SELECT s.database_identity INTO STRICT database_identity FROM fenceguard.server_state s;
END $$;
COMMENT ON FUNCTION fenceguard.execute_once_close(text, text, json, json, bigint, interval) IS
  'Stores the answer in the message that execute_once_open() began; returns which database this is.';

SELECT fenceguard.end_migration(5, 'transaction');
COMMIT;
