-- 0010: leases in the database itself, for users without Redis (postgres::lease_store).
--
-- A lease says who may try. It is not what keeps data right: that is the fence. So a lease may be lost (a crash with
-- synchronous_commit off, an asynchronous standby that is promoted) and all that follows is that two processes believe
-- they hold it, of whom the fence refuses the older. Hence these transactions need not wait for the disk: the caller sets
-- synchronous_commit off for them. Tokens come from reserve_tokens(), which does wait.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(10, 'lease');

-- A row is kept when its lease ends, and used again by the next grant: no index entry changes then, so that an update
-- stays on its page and is cleaned up there (HOT). forget_leases() deletes rows that have long been free.
CREATE TABLE fenceguard.lease (
  resource     text COLLATE "C" NOT NULL,
  holder       text NOT NULL,
  token        bigint,                -- NULL until the grant has been numbered
  since        timestamptz NOT NULL,
  expires_at   timestamptz NOT NULL,  -- of a released lease: when that was
  label        text NOT NULL,
  -- Who waits for a notification, in the order of asking, and until when each is to be believed; 100 at most, the others poll.
  -- In this row, and not in a table of their own, so that nobody joins the line while the lease is being released unseen.
  waiters      bigint[] NOT NULL DEFAULT '{}',
  waits_until  timestamptz[] NOT NULL DEFAULT '{}',
  CONSTRAINT lease_pkey PRIMARY KEY (resource)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE fenceguard.lease IS 'Leases of postgres::lease_store, one row per resource; free where expires_at is over.';

-- All who take or end a lease of a resource come one after another: a release that undoes an acquisition waits for one that
-- is under way, also where its row cannot be seen yet. The number is the word "lease" in ASCII.
CREATE FUNCTION fenceguard.lease_lock(resource text) RETURNS bigint
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT hashtextextended(resource, 465557414757)
$$;

CREATE FUNCTION fenceguard.server_us() RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Puts a waiter at the end of the line for a lease, without those who have left it. False where that holder has it no more.
CREATE FUNCTION fenceguard.lease_join_line(resource text, holder text, waiter bigint) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  line record;
BEGIN
  SELECT l.waiters, l.waits_until INTO line FROM fenceguard.lease AS l
    WHERE l.resource = lease_join_line.resource AND l.holder = lease_join_line.holder AND l.expires_at > clock_timestamp()
    FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE fenceguard.lease AS l
    SET (waiters, waits_until) = (
      SELECT array_agg(w.id ORDER BY w.place), array_agg(w.until ORDER BY w.place)
        FROM ((SELECT o.id, o.until, o.place FROM unnest(line.waiters, line.waits_until) WITH ORDINALITY AS o(id, until, place)
                 WHERE o.until > clock_timestamp() AND o.id <> waiter ORDER BY o.place LIMIT 99)
              UNION ALL SELECT waiter, clock_timestamp() + interval '10 s', 1000) AS w)
    WHERE l.resource = lease_join_line.resource;
  RETURN true;
END $$;

-- Tells the first of the line that the lease is free. Two of them, since one may have gone: each who asks costs a
-- transaction, so not all of them. The others are told by later releases, and poll now and then.
CREATE FUNCTION fenceguard.lease_call_next(resource text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  line record;
  one record;
  last bigint := 0;
  called int := 0;
BEGIN
  SELECT l.waiters, l.waits_until INTO line FROM fenceguard.lease AS l WHERE l.resource = lease_call_next.resource;
  FOR one IN SELECT w.id, w.until, w.place FROM unnest(line.waiters, line.waits_until) WITH ORDINALITY AS w(id, until, place)
               ORDER BY w.place LOOP
    last := one.place;
    IF one.until > clock_timestamp() THEN
      PERFORM pg_notify('fenceguard_lease_' || to_hex(one.id), resource);
      called := called + 1;
      EXIT WHEN called = 2;
    END IF;
  END LOOP;
  UPDATE fenceguard.lease AS l
    SET waiters = line.waiters[last + 1 : cardinality(line.waiters)],
        waits_until = line.waits_until[last + 1 : cardinality(line.waits_until)]
    WHERE l.resource = lease_call_next.resource;
END $$;

-- Takes a lease that nobody holds. The token comes later: lease_number().
--   execute_by  in this server's microseconds since 1970: a request that was held up on its way takes nothing
--   waiter      who is to be notified of a release, on the channel fenceguard_lease_<waiter in hexadecimal>; nobody where NULL.
--               Good for 10 s, and for one notification.
--   outcome     held, busy (remaining_ms: of the present holder), late
CREATE FUNCTION fenceguard.lease_acquire(
  resource text, holder text, label text, ttl_ms bigint, execute_by bigint, waiter bigint DEFAULT NULL,
  OUT outcome text, OUT now_us bigint, OUT remaining_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  standing record;
  ttl interval := ttl_ms * interval '1 millisecond';
  locked bool := false;
BEGIN
  IF resource IS NULL OR octet_length(resource) NOT BETWEEN 1 AND 512 OR holder IS NULL OR label IS NULL OR ttl_ms IS NULL
     OR ttl_ms < 1 OR ttl_ms > 86400000 OR length(holder) <> 32 OR execute_by IS NULL THEN
    RAISE EXCEPTION 'lease_acquire: a resource of 1 to 512 bytes, a holder of 32 characters, a label, a ttl of 1 ms to 1 day '
      'and a time are needed' USING ERRCODE = '22023';
  END IF;
  LOOP
    now_us := fenceguard.server_us();  -- anew after each wait
    IF now_us > execute_by THEN
      outcome := 'late';
      RETURN;
    END IF;
    -- Most who come find it held: that must not cost a write.
    SELECT l.holder, l.expires_at, l.waiters, l.waits_until INTO standing FROM fenceguard.lease AS l
      WHERE l.resource = lease_acquire.resource AND l.expires_at > clock_timestamp();
    IF FOUND THEN
      IF waiter IS NOT NULL AND NOT EXISTS (
           SELECT FROM unnest(standing.waiters, standing.waits_until) AS w(id, until)
            WHERE w.id = waiter AND w.until > clock_timestamp() + interval '5 s') THEN
        -- Where it was released meanwhile, nobody has been notified on this caller's behalf: look again.
        CONTINUE WHEN NOT fenceguard.lease_join_line(resource, standing.holder, waiter);
      END IF;
      outcome := 'busy';
      remaining_ms := greatest(1, ceil(extract(epoch FROM standing.expires_at - clock_timestamp()) * 1000));
      RETURN;
    ELSIF NOT locked THEN
      PERFORM pg_advisory_xact_lock(fenceguard.lease_lock(resource));
      locked := true;
    ELSE
      -- Renewals take no advisory lock. One that came just before the end may not have been visible above: the
      -- condition sees it, after a wait for its row.
      INSERT INTO fenceguard.lease AS l (resource, holder, token, since, expires_at, label)
        VALUES (resource, holder, NULL, clock_timestamp(), clock_timestamp() + ttl, label)
        ON CONFLICT ON CONSTRAINT lease_pkey DO UPDATE
          SET holder = EXCLUDED.holder, token = NULL, since = clock_timestamp(), expires_at = clock_timestamp() + ttl,
              label = EXCLUDED.label
          WHERE l.expires_at <= clock_timestamp();
      IF FOUND THEN
        outcome := 'held';
        RETURN;
      END IF;
    END IF;
  END LOOP;
END $$;
COMMENT ON FUNCTION fenceguard.lease_acquire(text, text, text, bigint, bigint, bigint) IS
  'Takes a lease that nobody holds: held, busy or late.';

-- Numbers a grant that still holds. The token was reserved after the lease was taken (or, for a fresh token, before this
-- looks whether it still is): the other order would give a paused old holder the highest number.
--   outcome: numbered, lost, or overtaken where the grant has this token or a higher one already
CREATE FUNCTION fenceguard.lease_number(resource text, holder text, token bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  standing record;
BEGIN
  IF resource IS NULL OR holder IS NULL OR token IS NULL OR token NOT BETWEEN 1 AND 9007199254740991 THEN
    RAISE EXCEPTION 'lease_number: a resource, a holder and a token of 1 to 2^53-1 are needed' USING ERRCODE = '22023';
  END IF;
  SELECT l.token INTO standing FROM fenceguard.lease AS l
    WHERE l.resource = lease_number.resource AND l.holder = lease_number.holder AND l.expires_at > clock_timestamp()
    FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 'lost';
  ELSIF standing.token >= token THEN
    RETURN 'overtaken';
  END IF;
  UPDATE fenceguard.lease AS l SET token = lease_number.token WHERE l.resource = lease_number.resource;
  RETURN 'numbered';
END $$;
COMMENT ON FUNCTION fenceguard.lease_number(text, text, bigint) IS 'Gives a grant that still holds its token.';

-- Extends the leases that still belong to their holders and have not run out; never takes one again. Returns the
-- positions (from 1) of those that were renewed; the others are lost.
CREATE FUNCTION fenceguard.lease_renew(resources text[], holders text[], ttls_ms bigint[]) RETURNS SETOF int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF cardinality(resources) IS DISTINCT FROM cardinality(holders)
     OR cardinality(resources) IS DISTINCT FROM cardinality(ttls_ms) THEN
    RAISE EXCEPTION 'lease_renew: three arrays of one length are needed' USING ERRCODE = '22023';
  END IF;
  RETURN QUERY
    UPDATE fenceguard.lease AS l SET expires_at = clock_timestamp() + u.ttl_ms * interval '1 millisecond'
      FROM unnest(resources, holders, ttls_ms) WITH ORDINALITY AS u(resource, holder, ttl_ms, position)
      WHERE l.resource = u.resource AND l.holder = u.holder AND l.expires_at > clock_timestamp()
      RETURNING u.position::int;
END $$;
COMMENT ON FUNCTION fenceguard.lease_renew(text[], text[], bigint[]) IS
  'Extends leases that still belong to their holders; returns the positions of those.';

-- Ends a lease that is still its holder's; tells those who wait. released or already_lost.
CREATE FUNCTION fenceguard.lease_release(resource text, holder text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  waited_for bool;
BEGIN
  IF resource IS NULL OR holder IS NULL THEN
    RAISE EXCEPTION 'lease_release: a resource and a holder are needed' USING ERRCODE = '22023';
  END IF;
  PERFORM pg_advisory_xact_lock(fenceguard.lease_lock(resource));
  UPDATE fenceguard.lease AS l SET expires_at = clock_timestamp()
    WHERE l.resource = lease_release.resource AND l.holder = lease_release.holder AND l.expires_at > clock_timestamp()
    RETURNING l.waiters <> '{}' INTO waited_for;
  IF NOT FOUND THEN
    RETURN 'already_lost';
  END IF;
  -- NOTIFY takes a lock of the whole server at COMMIT, so it is sent only where somebody waits.
  IF waited_for THEN
    PERFORM fenceguard.lease_call_next(resource);
  END IF;
  RETURN 'released';
END $$;
COMMENT ON FUNCTION fenceguard.lease_release(text, text) IS 'Ends a lease that is still its holder''s.';

-- Leases that are held now.
CREATE FUNCTION fenceguard.live_leases(
  OUT resource text, OUT holder text, OUT token bigint, OUT since timestamptz, OUT remaining_ms bigint, OUT label text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.resource, l.holder, l.token, l.since,
         greatest(1, ceil(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000))::bigint, l.label
    FROM fenceguard.lease AS l WHERE l.expires_at > clock_timestamp() ORDER BY l.resource
$$;
COMMENT ON FUNCTION fenceguard.live_leases() IS 'Who holds which lease, since when, for how long.';

CREATE FUNCTION fenceguard.lease_inspect(
  resource text, OUT holder text, OUT token bigint, OUT since_us bigint, OUT remaining_ms bigint, OUT label text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.holder, l.token, (extract(epoch FROM l.since) * 1000000)::bigint,
         greatest(1, ceil(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000))::bigint, l.label
    FROM fenceguard.lease AS l WHERE l.resource = lease_inspect.resource AND l.expires_at > clock_timestamp()
$$;
COMMENT ON FUNCTION fenceguard.lease_inspect(text) IS 'Who holds a lease; no row where nobody does.';

-- Deletes rows of leases that ended longer ago than that, at most `batch`, past those that are being used. Returns how
-- many. Safe beside live traffic: a free row means nothing.
CREATE FUNCTION fenceguard.forget_leases(older_than interval, batch int DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint;
BEGIN
  IF older_than IS NULL OR older_than < interval '0' OR batch IS NULL OR batch < 1 THEN
    RAISE EXCEPTION 'forget_leases: older_than must not be negative, and batch at least 1' USING ERRCODE = '22023';
  END IF;
  WITH free AS (
    SELECT l.resource FROM fenceguard.lease AS l WHERE l.expires_at < clock_timestamp() - older_than
      LIMIT batch FOR UPDATE SKIP LOCKED)
  DELETE FROM fenceguard.lease AS l USING free WHERE l.resource = free.resource;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;
COMMENT ON FUNCTION fenceguard.forget_leases(interval, int) IS 'Deletes rows of leases that ended long ago; returns how many.';

SELECT fenceguard.end_migration(10, 'lease');
COMMIT;
