-- 0004: one key takes effect once; a repeat gets the stored answer.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(4, 'idempotency');

CREATE TABLE fenceguard.idempotency (
  scope       text COLLATE "C" NOT NULL,  -- keeps tenants or kinds of request apart; may be empty
  key         text COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL,             -- SHA-256 of the request, which itself is not kept
  answer      json,                       -- json and not jsonb: kept byte for byte
  token       bigint,                     -- of the grant that stored it
  created_at  timestamptz NOT NULL DEFAULT now(),
  -- Only says when forget_keys() may delete the row: a key is honoured as long as its row stands.
  expires_at  timestamptz,
  CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key)
);
-- No CHECK: the server parses each of them anew for every statement, and the functions check.
COMMENT ON TABLE fenceguard.idempotency IS 'The answer to each request that took effect, by scope and key.';

-- Rows come in the order of their age, so block ranges find the old ones at next to no cost for an insert.
CREATE INDEX idempotency_age ON fenceguard.idempotency USING brin (created_at, expires_at)
  WITH (pages_per_range = 32, autosummarize = on);

-- jsonb has one text for all spellings of an object: no white space, keys sorted, the last of equal keys. 1.0 and 1.00
-- stay different.
CREATE FUNCTION fenceguard.fingerprint(request json) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT sha256(convert_to(request::jsonb::text, 'UTF8'))
$$;
COMMENT ON FUNCTION fenceguard.fingerprint(json) IS 'SHA-256 over the canonical text of a request.';

-- The advisory lock of a key; the number is the word "key" in ASCII.
CREATE FUNCTION fenceguard.key_lock(scope text, key text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT hashtextextended(key, hashtextextended(scope, 7038329))
$$;

CREATE FUNCTION fenceguard.await_key(scope text, key text, patience_ms int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  remaining_ms int := fenceguard.await_lock(fenceguard.key_lock(scope, key), patience_ms);
BEGIN
  IF remaining_ms = -1 THEN
    RAISE EXCEPTION 'in progress: another transaction holds idempotency key % of scope %', key, scope
      USING ERRCODE = 'TF005', DETAIL = fenceguard.describe_lock_holder(fenceguard.key_lock(scope, key)),
            HINT = 'Try again with the same key.';
  END IF;
  RETURN remaining_ms;
END $$;

CREATE FUNCTION fenceguard.check_key(scope text, key text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF scope IS NULL OR octet_length(scope) > 255 THEN
    RAISE EXCEPTION 'scope must be given and have at most 255 bytes' USING ERRCODE = 'invalid_parameter_value';
  ELSIF key IS NULL OR octet_length(key) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'key must have 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- For other languages, in the transaction that called replay() and found nothing.
CREATE FUNCTION fenceguard.store_answer(
  scope text, key text, request json, answer json, token bigint DEFAULT NULL, retention interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM fenceguard.check_key(scope, key);
  IF request IS NULL THEN
    RAISE EXCEPTION 'request must be given' USING ERRCODE = 'invalid_parameter_value';
  ELSIF token NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION 'token % is out of range', token USING ERRCODE = 'invalid_parameter_value';
  ELSIF retention < interval '0' THEN
    RAISE EXCEPTION 'retention must not be negative' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF NOT pg_try_advisory_xact_lock(fenceguard.key_lock(scope, key)) THEN
    PERFORM fenceguard.await_key(scope, key, NULL);
  END IF;
  INSERT INTO fenceguard.idempotency(scope, key, fingerprint, answer, token, expires_at)
    VALUES (scope, key, fenceguard.fingerprint(request), answer, token, now() + retention);
END $$;
COMMENT ON FUNCTION fenceguard.store_answer(text, text, json, json, bigint, interval) IS
  'Stores the answer to a request in the transaction that carries it out. 23505 when the key is taken: ask replay() again.';

-- Whether the transaction that was to store this key did: committed (with the answer), not_committed or unknown. It
-- waits while that transaction is open. Without started_at a key that is not there counts as not committed, which is
-- right as long as keys are kept for longer than a caller goes on asking.
CREATE FUNCTION fenceguard.resolve_key(
  scope text, key text, fingerprint bytea, patience_ms int DEFAULT NULL, started_at timestamptz DEFAULT NULL,
  OUT outcome text, OUT answer json)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored record;
BEGIN
  PERFORM fenceguard.check_key(scope, key);
  IF fingerprint IS NULL THEN
    RAISE EXCEPTION 'fingerprint must be given' USING ERRCODE = 'invalid_parameter_value';
  ELSIF patience_ms < 0 THEN
    RAISE EXCEPTION 'patience_ms must not be negative' USING ERRCODE = 'invalid_parameter_value';
  ELSIF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'only the primary can resolve a commit' USING ERRCODE = 'read_only_sql_transaction';
  ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a commit is resolved in READ COMMITTED only' USING ERRCODE = 'active_sql_transaction';
  END IF;
  IF NOT pg_try_advisory_xact_lock(fenceguard.key_lock(scope, key)) THEN
    PERFORM fenceguard.await_key(scope, key, patience_ms);
  END IF;
  SELECT k.fingerprint, k.answer INTO stored FROM fenceguard.idempotency k
   WHERE k.scope = resolve_key.scope AND k.key = resolve_key.key;
  IF FOUND AND stored.fingerprint = resolve_key.fingerprint THEN
    outcome := 'committed';
    answer := stored.answer;
  ELSIF started_at IS NOT NULL
        AND started_at <= (SELECT s.keys_forgotten_to FROM fenceguard.server_state s) THEN
    outcome := 'unknown';  -- it may have been stored and forgotten since
  ELSE
    outcome := 'not_committed';
  END IF;
END $$;
COMMENT ON FUNCTION fenceguard.resolve_key(text, text, bytea, int, timestamptz) IS
  'committed (with the answer), not_committed or unknown, for a key whose COMMIT got no answer.';

CREATE FUNCTION fenceguard.forget_keys(older_than interval, batch int DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  deleted bigint;
  newest timestamptz;
  cutoff timestamptz := clock_timestamp() - older_than;
  present timestamptz := clock_timestamp();
BEGIN
  IF older_than IS NULL OR older_than < interval '0' THEN
    RAISE EXCEPTION 'older_than must not be negative' USING ERRCODE = 'invalid_parameter_value';
  ELSIF batch IS NULL OR batch NOT BETWEEN 1 AND 1000000 THEN
    RAISE EXCEPTION 'batch must be between 1 and 1000000' USING ERRCODE = 'invalid_parameter_value';
  ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'keys are forgotten in READ COMMITTED only' USING ERRCODE = 'active_sql_transaction';
  END IF;
  WITH old AS (
    SELECT k.ctid FROM fenceguard.idempotency k
     WHERE (k.expires_at IS NULL AND k.created_at < cutoff) OR k.expires_at < present
     LIMIT batch FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM fenceguard.idempotency k USING old WHERE k.ctid = old.ctid RETURNING k.created_at)
  SELECT count(*), max(g.created_at) INTO deleted, newest FROM gone g;
  UPDATE fenceguard.server_state s SET keys_forgotten_to = newest WHERE s.keys_forgotten_to < newest;
  RETURN deleted;
END $$;
COMMENT ON FUNCTION fenceguard.forget_keys(interval, int) IS
  'Deletes at most batch keys: those stored with a retention when that is over, the others when older than older_than. Returns how many.';

SELECT fenceguard.end_migration(4, 'idempotency');
COMMIT;
