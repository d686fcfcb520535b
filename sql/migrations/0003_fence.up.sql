-- 0003: the fence, one row per resource, and what surrounds a claim. The claim itself opens a guarded
-- transaction and stands in 0005.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(3, 'fence');

CREATE TABLE fenceguard.fence (
  -- Bytewise order: a transaction over several resources locks them in the order of their names, and two
  -- collations would be two orders.
  resource    text COLLATE "C" CONSTRAINT fence_pkey PRIMARY KEY,
  token       bigint NOT NULL  -- a write of 2^63-1 would shut everybody out for ever
              CONSTRAINT fence_token_range CHECK (token BETWEEN 1 AND 9007199254740991),
  holder      text NOT NULL,
  -- The transaction that claimed. Its number alone is no proof: numbers come again in a restored cluster.
  claimed_xid xid8 NOT NULL,
  claimed_at  timestamptz NOT NULL,
  -- What that claim found. It costs a wide row where a second statement would cost time.
  previous_xid xid8,
  previous_at  timestamptz
) WITH (fillfactor = 50);
-- One CHECK only: the server parses each of them anew for every statement, and claims check lengths themselves.
-- Only the primary key: an index on any other column would make every claim write all indexes (no HOT update).
COMMENT ON TABLE fenceguard.fence IS 'The highest token accepted for each resource, and whose it was.';

-- The advisory lock of a resource; the number is the word "fence" in ASCII. Claims repeat this expression, because
-- a call would cost more than the lock.
CREATE FUNCTION fenceguard.fence_lock(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT hashtextextended(resource, 439788397413)
$$;

-- The advisory locks of this database, whoever holds them. A prepared transaction has no pid and keeps the virtual number of
-- the session that prepared it, so its name is found through the lock on its own transaction number.
CREATE FUNCTION fenceguard.advisory_locks(
  OUT owner text, OUT pid int, OUT prepared text, OUT lock bigint, OUT exclusive bool)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  WITH locks AS MATERIALIZED (SELECT * FROM pg_locks l WHERE l.granted)
  SELECT l.virtualtransaction, l.pid,
         (SELECT p.gid FROM locks own JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
           WHERE own.locktype = 'transactionid' AND own.pid IS NULL AND own.virtualtransaction = l.virtualtransaction),
         l.classid::bigint << 32 | l.objid::bigint, l.mode = 'ExclusiveLock'
    FROM locks l
   WHERE l.locktype = 'advisory' AND l.objsubid = 1
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

-- Who holds an advisory lock exclusively, in words, for the DETAIL of an error.
CREATE FUNCTION fenceguard.describe_lock_holder(wanted bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(min(CASE
    WHEN l.pid IS NULL THEN format('prepared transaction %s, since %s', p.gid, p.prepared)
    ELSE format('pid %s, since %s, application_name %s', l.pid,
                coalesce(a.xact_start::text, 'unknown'), coalesce(a.application_name, 'unknown')) END),
    'the holder has just ended')
    FROM fenceguard.advisory_locks() l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts p ON p.gid = l.prepared
   WHERE l.exclusive AND l.lock = wanted
$$;

-- Takes an advisory transaction lock that was not free, waiting at most patience_ms (NULL: the session's own
-- lock_timeout; 0: not at all). Gives back what is left of the patience, or -1 when the lock was not to be had. The
-- exception block makes a subtransaction, so nothing is written in it, and callers come here only after an attempt
-- without one.
CREATE FUNCTION fenceguard.await_lock(lock bigint, patience_ms int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  session_timeout text := current_setting('lock_timeout');
  began timestamptz := clock_timestamp();
BEGIN
  IF patience_ms = 0 THEN
    RETURN -1;
  END IF;
  BEGIN
    IF patience_ms IS NOT NULL THEN
      PERFORM set_config('lock_timeout', patience_ms::text, true);
    END IF;
    PERFORM pg_advisory_xact_lock(lock);
    IF patience_ms IS NOT NULL THEN
      PERFORM set_config('lock_timeout', session_timeout, true);
    END IF;
  EXCEPTION WHEN lock_not_available THEN
    RETURN -1;  -- the block's rollback has put lock_timeout back
  END;
  RETURN patience_ms - least(patience_ms, (date_part('epoch', clock_timestamp() - began) * 1000)::int);
END $$;

CREATE FUNCTION fenceguard.await_fence(resource text, patience_ms int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  remaining_ms int := fenceguard.await_lock(fenceguard.fence_lock(resource), patience_ms);
BEGIN
  IF remaining_ms = -1 THEN
    RAISE EXCEPTION 'fence busy: resource %', resource
      USING ERRCODE = 'TF006', DETAIL = fenceguard.describe_lock_holder(fenceguard.fence_lock(resource)),
            HINT = 'Another transaction holds the resource. Try again, or end it with fenceguard.evict().';
  END IF;
  RETURN remaining_ms;
END $$;

-- What became of a transaction whose COMMIT was never answered. It waits while that transaction is still open, at
-- most patience_ms. Not pg_xact_status(): after a crash or a promotion a transaction number is used again, and it
-- has said "committed" for a transaction that was never stored.
CREATE FUNCTION fenceguard.resolve(
  resource text, xid xid8, started_at timestamptz, previous_xid xid8, previous_at timestamptz,
  patience_ms int DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fence fenceguard.fence;
  forgotten_to timestamptz;
BEGIN
  IF resource IS NULL OR xid IS NULL OR started_at IS NULL THEN
    RAISE EXCEPTION 'resource, xid and started_at must be given' USING ERRCODE = 'invalid_parameter_value';
  ELSIF patience_ms < 0 THEN
    RAISE EXCEPTION 'patience_ms must not be negative' USING ERRCODE = 'invalid_parameter_value';
  ELSIF pg_is_in_recovery() THEN  -- a standby knows neither the locks nor the last commits
    RAISE EXCEPTION 'only the primary can resolve a commit' USING ERRCODE = 'read_only_sql_transaction';
  ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a commit is resolved in READ COMMITTED only' USING ERRCODE = 'active_sql_transaction';
  END IF;
  IF NOT pg_try_advisory_xact_lock(hashtextextended(resource, 439788397413)) THEN
    PERFORM fenceguard.await_fence(resource, patience_ms);
  END IF;
  SELECT f.* INTO fence FROM fenceguard.fence f WHERE f.resource = resolve.resource;
  IF FOUND THEN
    IF fence.claimed_xid = xid AND fence.claimed_at = started_at THEN
      RETURN 'committed';
    ELSIF fence.previous_xid = xid AND fence.previous_at = started_at THEN
      RETURN 'committed';  -- the next claim found it
    ELSIF fence.claimed_xid = previous_xid AND fence.claimed_at = previous_at THEN
      RETURN 'not_committed';  -- the row is as that transaction found it
    ELSIF fence.previous_xid = previous_xid AND fence.previous_at = previous_at THEN
      RETURN 'not_committed';  -- the next claim found what that transaction had found
    END IF;
  END IF;
  -- There was no row when it claimed, and there is none now or it was made by another claim.
  IF previous_xid IS NULL AND fence.previous_xid IS NULL THEN
    SELECT s.fences_forgotten_to INTO STRICT forgotten_to FROM fenceguard.server_state s;
    IF started_at > forgotten_to THEN
      RETURN 'not_committed';
    END IF;
  END IF;
  RETURN 'unknown';
END $$;
COMMENT ON FUNCTION fenceguard.resolve(text, xid8, timestamptz, xid8, timestamptz, int) IS
  'committed, not_committed or unknown, for a claim whose COMMIT got no answer; the arguments are what the claim returned.';

-- Deletes fences that nobody has claimed for older_than, at most batch, and returns how many. Open claims are passed
-- over. `forgotten` takes the memory's place: a claim that makes a new row must beat it. The state row is locked first,
-- so that while fences are locked nothing is waited for.
CREATE FUNCTION fenceguard.forget_fences(older_than interval, batch int DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  deleted bigint;
  highest bigint;
  newest timestamptz;
  idle_timeout text := current_setting('idle_in_transaction_session_timeout');
BEGIN
  IF older_than IS NULL OR older_than < interval '0' THEN
    RAISE EXCEPTION 'older_than must not be negative' USING ERRCODE = 'invalid_parameter_value';
  ELSIF batch IS NULL OR batch NOT BETWEEN 1 AND 1000000 THEN
    RAISE EXCEPTION 'batch must be between 1 and 1000000' USING ERRCODE = 'invalid_parameter_value';
  ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'fences are forgotten in READ COMMITTED only' USING ERRCODE = 'active_sql_transaction';
  END IF;
  -- A claim of a row in this batch waits for this transaction; one that is left open must not last.
  IF idle_timeout = '0' OR idle_timeout::interval > interval '5 s' THEN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
  END IF;
  PERFORM FROM fenceguard.server_state FOR NO KEY UPDATE;
  WITH old AS (
    SELECT f.ctid FROM fenceguard.fence f
     WHERE f.claimed_at < clock_timestamp() - older_than LIMIT batch FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM fenceguard.fence f USING old WHERE f.ctid = old.ctid RETURNING f.token, f.claimed_at)
  SELECT count(*), max(g.token), max(g.claimed_at) INTO deleted, highest, newest FROM gone g;
  UPDATE fenceguard.server_state s
     SET forgotten = greatest(s.forgotten, highest), fences_forgotten_to = greatest(s.fences_forgotten_to, newest)
   WHERE s.forgotten < highest OR s.fences_forgotten_to < newest;
  RETURN deleted;
END $$;
COMMENT ON FUNCTION fenceguard.forget_fences(interval, int) IS
  'Deletes at most batch fences not claimed for older_than; returns how many. Repeat until it returns less than batch.';

SELECT fenceguard.end_migration(3, 'fence');
COMMIT;
