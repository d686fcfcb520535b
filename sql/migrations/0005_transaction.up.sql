-- 0005: opening and closing a guarded transaction.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(5, 'transaction');

-- The one entrance: sent with BEGIN in one message. In this order:
--   1. the idempotency key, if any (scope and key NULL: none): its lock, then the look-up, each a statement of its own. A
--      stored answer to the same request is returned, replayed is true, and nothing is claimed, so that a repeat gets
--      it also from a holder that has become stale. Another request: TF003. Still being carried out: TF005.
--   2. each resource in bytewise order of its name: its lock, then its row. Stale: TF001. Held by another: TF006.
--   3. the floors and the server's identity, read after the rows are ours, in a statement of its own. Read before,
--      forget_fences() could raise the bound in between.
-- A claim must be a statement of its own, never part of the statement that reads or writes what it guards: that
-- statement's snapshot would be from before the claim.
--
-- patience_ms bounds the waits for locks (NULL: the session's lock_timeout). max_idle_ms bounds how long the server lets
-- the transaction sit idle, or its client not receive, before it ends it (NULL: 30 s; what is tighter stays).
--
-- This is the hot path: a guarded transaction should cost what a hand-written one with SELECT FOR UPDATE costs. So
-- nothing is called that is not a built-in function, conditions are plain expressions (evaluated without a query), and
-- whatever waits or fails goes elsewhere.
CREATE FUNCTION fenceguard.open_guarded(
  resources text[], tokens bigint[], holders text[],
  scope text, key text, request json,
  patience_ms int, max_idle_ms int,
  OUT replayed bool, OUT answer json, OUT fingerprint bytea,
  OUT xid xid8, OUT started_at timestamptz,
  OUT previous_xids xid8[], OUT previous_ats timestamptz[],  -- in the order of the arguments
  OUT database_identity text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  number_of_resources int := cardinality(resources);
  visit int[] := '{1}';
  i int;
  name text;
  new_token bigint;
  new_holder text;
  remaining_ms int := patience_ms;
  idle_ms int := coalesce(max_idle_ms, 30000);
  timeout text;
  stored_fingerprint bytea;
  current_token bigint;
  current_holder text;
  previous_xid xid8;
  previous_at timestamptz;
  inserted int[];
  state record;
BEGIN
  IF number_of_resources IS NULL OR cardinality(tokens) IS DISTINCT FROM number_of_resources
     OR cardinality(holders) IS DISTINCT FROM number_of_resources THEN
    RAISE EXCEPTION 'resources, tokens and holders must be arrays of one length'
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF number_of_resources = 0 AND key IS NULL THEN
    RAISE EXCEPTION 'a resource or an idempotency key must be given' USING ERRCODE = 'invalid_parameter_value';
  ELSIF patience_ms < 0 OR idle_ms < 1 THEN
    RAISE EXCEPTION 'patience_ms must not be negative and max_idle_ms must be positive'
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF (scope IS NULL) <> (key IS NULL) OR (key IS NOT NULL AND request IS NULL) THEN
    RAISE EXCEPTION 'scope, key and request are given together' USING ERRCODE = 'invalid_parameter_value';
  END IF;

  replayed := false;
  started_at := now();

  IF key IS NOT NULL THEN
    IF octet_length(key) NOT BETWEEN 1 AND 512 OR octet_length(scope) > 255 THEN
      PERFORM fenceguard.check_key(scope, key);
    END IF;
    fingerprint := sha256(convert_to(request::jsonb::text, 'UTF8'));
    IF NOT pg_try_advisory_xact_lock(hashtextextended(key, hashtextextended(scope, 7038329))) THEN
      remaining_ms := fenceguard.await_key(scope, key, remaining_ms);
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

  IF number_of_resources <> 1 THEN
    visit := ARRAY(SELECT r.position FROM unnest(resources) WITH ORDINALITY AS r(resource, position)
                    ORDER BY r.resource COLLATE "C");
    IF number_of_resources <> (SELECT count(DISTINCT r) FROM unnest(resources) r) THEN
      RAISE EXCEPTION 'each resource may be given once' USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END IF;
  xid := pg_current_xact_id();

  FOREACH i IN ARRAY visit LOOP
    name := resources[i];
    new_token := tokens[i];
    new_holder := holders[i];
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512
       OR new_token IS NULL OR new_token NOT BETWEEN 1 AND 9007199254740991
       OR new_holder IS NULL OR octet_length(new_holder) NOT BETWEEN 1 AND 128 THEN
      RAISE EXCEPTION 'claim of resource %: the name must have 1 to 512 bytes, the token be between 1 and 2^53-1, the holder have 1 to 128 bytes',
        coalesce(quote_literal(left(name, 64)), 'null') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- A token that nobody was given would shut out everybody for ever.
    IF new_token > date_part('epoch', clock_timestamp()) * 1000000 THEN
      PERFORM fenceguard.check_issued(new_token);
    END IF;

    -- One fair wait, visible in pg_locks also for a resource without a row; a wait for the row would be two waits and twice
    -- the timeout. The two shared locks publish which token holds which resource, for in_flight and evict. The row
    -- below stays the real guard.
    IF NOT pg_try_advisory_xact_lock(hashtextextended(name, 439788397413)) THEN
      remaining_ms := fenceguard.await_fence(name, remaining_ms);
    END IF;
    IF NOT (pg_try_advisory_xact_lock_shared(4611686018427387904 | new_token)
            AND pg_try_advisory_xact_lock_shared(hashtextextended(name, new_token))) THEN
      PERFORM pg_advisory_xact_lock_shared(4611686018427387904 | new_token),
              pg_advisory_xact_lock_shared(hashtextextended(name, new_token));
    END IF;

    LOOP
      UPDATE fenceguard.fence f
         SET token = new_token, holder = new_holder, claimed_xid = xid, claimed_at = started_at,
             -- A second claim in one transaction found what the first one found.
             previous_xid = CASE WHEN f.claimed_xid = xid AND f.claimed_at = started_at
                                 THEN f.previous_xid ELSE f.claimed_xid END,
             previous_at = CASE WHEN f.claimed_xid = xid AND f.claimed_at = started_at
                                THEN f.previous_at ELSE f.claimed_at END
       WHERE f.resource = name AND (f.token < new_token OR (f.token = new_token AND f.holder = new_holder))
       RETURNING f.previous_xid, f.previous_at INTO previous_xid, previous_at;
      EXIT WHEN FOUND;
      INSERT INTO fenceguard.fence(resource, token, holder, claimed_xid, claimed_at)
        VALUES (name, new_token, new_holder, xid, started_at) ON CONFLICT DO NOTHING;
      IF FOUND THEN
        inserted := inserted || i;
        EXIT;
      END IF;
      SELECT f.token, f.holder INTO current_token, current_holder FROM fenceguard.fence f WHERE f.resource = name;
      IF FOUND AND (current_token > new_token OR (current_token = new_token AND current_holder <> new_holder)) THEN
        RAISE EXCEPTION 'stale token: presented %, current %, resource %', new_token, current_token, name
          USING ERRCODE = 'TF001', DETAIL = 'holder ' || current_holder,
                HINT = 'Another grant has claimed the resource since. Acquire the lease again.';
      END IF;
      -- Deleted by forget_fences() in between: once more.
    END LOOP;
    previous_xids[i] := previous_xid;
    previous_ats[i] := previous_at;
  END LOOP;

  -- The server ends a holder that is paused while idle; on TCP also one that is paused while it is being sent to.
  timeout := current_setting('idle_in_transaction_session_timeout');
  IF timeout = '0' OR timeout::interval > idle_ms * interval '1 ms' THEN
    timeout := set_config('idle_in_transaction_session_timeout', idle_ms::text, true);
  END IF;
  IF inet_client_addr() IS NOT NULL THEN
    timeout := current_setting('tcp_user_timeout');
    IF timeout = '0' OR timeout::interval > idle_ms * interval '1 ms' THEN
      timeout := set_config('tcp_user_timeout', idle_ms::text, true);
    END IF;
  END IF;

  IF inserted IS NOT NULL AND current_setting('transaction_isolation') <> 'read committed' THEN
    PERFORM FROM fenceguard.server_state FOR SHARE;  -- 40001 if forget_fences() committed since the snapshot
  END IF;
  SELECT s.floor, s.forgotten, s.system_identifier || '/' || s.database_oid AS identity,
         s.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
         AND s.counter_oid = 'fenceguard.token_counter'::regclass AS same_server
    INTO STRICT state FROM fenceguard.server_state s;
  database_identity := state.identity;
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
COMMENT ON FUNCTION fenceguard.open_guarded(text[], bigint[], text[], text, text, json, int, int) IS
  'Opens a guarded transaction: replays a stored answer or claims the resources. TF001 stale, TF003 key reused, TF004 server changed, TF005 in progress, TF006 busy.';

-- A token above the clock is right only where the counter has run ahead of it, as after a promotion.
CREATE FUNCTION fenceguard.check_issued(token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF xid IS NULL OR pg_current_xact_id_if_assigned() IS DISTINCT FROM xid THEN
    RAISE EXCEPTION 'the guarded transaction has ended' USING ERRCODE = 'invalid_transaction_state';
  END IF;
  IF key IS NOT NULL THEN
    INSERT INTO fenceguard.idempotency(scope, key, fingerprint, answer, token, expires_at)
      VALUES (close_guarded.scope, close_guarded.key, close_guarded.fingerprint, close_guarded.answer,
              close_guarded.token, now() + retention);
  END IF;
END $$;
COMMENT ON FUNCTION fenceguard.close_guarded(xid8, text, text, bytea, json, bigint, interval) IS
  'The last statement before COMMIT: stores the answer under the key, if there is one. 25000 when the transaction is another one.';

-- A whole transaction in one message: execute_once_open(), the caller's statement, execute_once_close(); the server takes
-- the statements of one message as one transaction. Nothing in such a message can branch, so a replay is raised: the
-- DETAIL is the stored answer, whole, and the error ends the message before the caller's statement.
CREATE FUNCTION fenceguard.execute_once_open(
  resources text[], tokens bigint[], holders text[], scope text, key text, request json,
  patience_ms int, max_idle_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  opened record;
BEGIN
  IF key IS NULL THEN
    RAISE EXCEPTION 'key must be given' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT o.replayed, o.answer INTO opened
    FROM fenceguard.open_guarded(resources, tokens, holders, scope, key, request, patience_ms, max_idle_ms) o;
  IF opened.replayed THEN
    RAISE EXCEPTION 'replayed: key % of scope % was answered before', key, scope
      USING ERRCODE = 'TF007', DETAIL = coalesce(opened.answer::text, 'null');
  END IF;
END $$;
COMMENT ON FUNCTION fenceguard.execute_once_open(text[], bigint[], text[], text, text, json, int, int) IS
  'As open_guarded(), for a transaction in one message: a stored answer is raised (TF007, the answer in the DETAIL).';

CREATE FUNCTION fenceguard.execute_once_close(
  scope text, key text, request json, answer json, token bigint, retention interval, OUT database_identity text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO fenceguard.idempotency(scope, key, fingerprint, answer, token, expires_at)
    VALUES (execute_once_close.scope, execute_once_close.key,
            sha256(convert_to(execute_once_close.request::jsonb::text, 'UTF8')), execute_once_close.answer,
            execute_once_close.token, now() + retention);
  SELECT s.system_identifier || '/' || s.database_oid INTO STRICT database_identity
    FROM fenceguard.server_state s;
END $$;
COMMENT ON FUNCTION fenceguard.execute_once_close(text, text, json, json, bigint, interval) IS
  'Stores the answer in the message that execute_once_open() began; returns which database this is.';

SELECT fenceguard.end_migration(5, 'transaction');
COMMIT;
