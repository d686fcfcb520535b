-- 0002: fencing tokens come from the database that will judge them.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(2, 'tokens');

-- Two tables on purpose: every reservation writes the counter, every claim reads the state. A row that is both
-- would grow by hundreds of dead versions under an old snapshot (a running pg_dump) and slow every claim.
CREATE TABLE fenceguard.token_counter (
  one  bool   DEFAULT true CONSTRAINT token_counter_pkey PRIMARY KEY
              CONSTRAINT token_counter_one_row CHECK (one),
  next bigint NOT NULL DEFAULT 1
              CONSTRAINT token_counter_range CHECK (next BETWEEN 1 AND 9007199254740992)  -- 2^53: one past the last
) WITH (fillfactor = 10);
COMMENT ON TABLE fenceguard.token_counter IS 'The next token that nobody has had.';

CREATE TABLE fenceguard.server_state (
  one               bool   DEFAULT true CONSTRAINT server_state_pkey PRIMARY KEY
                           CONSTRAINT server_state_one_row CHECK (one),
  floor             bigint NOT NULL DEFAULT 0  -- a lower token is from before a promotion or restore
                           CONSTRAINT server_state_floor CHECK (floor BETWEEN 0 AND 9007199254740991),
  forgotten         bigint NOT NULL DEFAULT 0  -- the highest token whose fence row was deleted
                           CONSTRAINT server_state_forgotten CHECK (forgotten BETWEEN 0 AND 9007199254740991),
  -- The newest claim and the newest key that were deleted. What is younger was never forgotten, so its absence
  -- is proof that it did not commit.
  fences_forgotten_to timestamptz NOT NULL DEFAULT '-infinity',
  keys_forgotten_to   timestamptz NOT NULL DEFAULT '-infinity',
  -- Who wrote this row. Another value means that the database was promoted, restored or copied since, and that
  -- its last commits may be lost.
  system_identifier bigint NOT NULL,
  database_oid      oid    NOT NULL,
  timeline          text   NOT NULL,  -- 8 hexadecimal digits, as in the names of WAL files
  counter_oid       oid    NOT NULL,  -- of token_counter: a dump that is restored makes a new one
  -- The database's name for clients that work with several; a promotion does not change it.
  database_identity text   GENERATED ALWAYS AS (system_identifier::text || '/' || database_oid::text) STORED
) WITH (fillfactor = 10);
COMMENT ON TABLE fenceguard.server_state IS 'Floors and the identity of the server that wrote them; every claim reads it.';

-- pg_control_system() costs 20 to 30 microseconds a call, so claims compare timeline and oid only.
CREATE FUNCTION fenceguard.current_server(
  OUT system_identifier bigint, OUT database_oid oid, OUT timeline text, OUT counter_oid oid)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.system_identifier, d.oid, left(pg_walfile_name(pg_current_wal_lsn()), 8),
         'fenceguard.token_counter'::regclass::oid
    FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()
$$;
COMMENT ON FUNCTION fenceguard.current_server() IS 'The identity of this server and database.';

CREATE FUNCTION fenceguard.database_identity() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.database_identity FROM fenceguard.server_state s
$$;
COMMENT ON FUNCTION fenceguard.database_identity() IS 'The database''s name for clients that work with several.';

INSERT INTO fenceguard.token_counter DEFAULT VALUES;
INSERT INTO fenceguard.server_state(system_identifier, database_oid, timeline, counter_oid)
  SELECT s.system_identifier, s.database_oid, s.timeline, s.counter_oid FROM fenceguard.current_server() s;

-- Moves the counter by `count` and gives the first number of the range; with `new_floor`, or where the server has
-- become another one, leaps over everything that may have been given out and refuses all of it from now on.
--
-- The clock makes a copy of the database that was rolled back start above what was handed out before; the counter
-- alone guards against a clock that goes backwards. The margin of a leap, 2^32 microseconds (72 minutes), is put
-- on the clock and not on the counter: two servers that were promoted from one primary, one after the other,
-- have lost different commits, and only the clock puts their numbers in order.
CREATE FUNCTION fenceguard.advance_counter(count bigint, new_floor bool, OUT first bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  microseconds bigint;
  server record;
  known record;
  writer text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'tokens are reserved in READ COMMITTED only' USING ERRCODE = 'active_sql_transaction';
  END IF;
  -- A number must be committed before it is used: a transaction that rolls back would hand it out twice.
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION 'tokens are reserved in a transaction of their own, and this one has already written'
      USING ERRCODE = 'active_sql_transaction', HINT = 'Call it alone, outside BEGIN, on a connection of its own.';
  END IF;
  microseconds := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
  IF microseconds NOT BETWEEN 0 AND 7258118400000000 THEN
    RAISE EXCEPTION 'the server''s clock says %, which is before 1970 or after 2200', clock_timestamp()
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Set the clock; no token is issued by this one.';
  END IF;
  -- Commits that do not wait for the disk lose reservations in a crash. As a SET clause of the function this would
  -- end before COMMIT.
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;

  -- This row is the queue of all issuers; what follows is read after the wait, in statements of their own.
  UPDATE fenceguard.token_counter c SET next = greatest(c.next, microseconds) + advance_counter.count
    RETURNING c.next - advance_counter.count, c.xmin::text INTO first, writer;
  -- A subtransaction writes under a number of its own, and its caller can undo it and go on.
  IF writer::bigint <> pg_current_xact_id()::text::bigint & 4294967295 THEN
    RAISE EXCEPTION 'tokens are not reserved inside a savepoint or an exception block'
      USING ERRCODE = 'active_sql_transaction', HINT = 'Call it alone, outside BEGIN, on a connection of its own.';
  END IF;
  SELECT * INTO STRICT server FROM fenceguard.current_server();
  SELECT s.system_identifier, s.database_oid, s.timeline, s.counter_oid INTO STRICT known
    FROM fenceguard.server_state s;
  IF new_floor OR server IS DISTINCT FROM known THEN
    first := greatest(first, microseconds + 4294967296);
    UPDATE fenceguard.token_counter SET next = first + advance_counter.count;
    UPDATE fenceguard.server_state SET floor = first, system_identifier = server.system_identifier,
      database_oid = server.database_oid, timeline = server.timeline, counter_oid = server.counter_oid;
  END IF;
END $$;

CREATE FUNCTION fenceguard.reserve_tokens(count bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF count IS NULL OR count NOT BETWEEN 1 AND 100000000 THEN
    RAISE EXCEPTION 'count must be between 1 and 100000000, not %', coalesce(count::text, 'null')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN fenceguard.advance_counter(count, false);
END $$;
COMMENT ON FUNCTION fenceguard.reserve_tokens(bigint) IS
  'The first of count (1 to 10^8) consecutive tokens that nobody has had and nobody will have. Call it alone; use them after COMMIT.';

CREATE FUNCTION fenceguard.raise_floor() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN fenceguard.advance_counter(0, true);
END $$;
COMMENT ON FUNCTION fenceguard.raise_floor() IS
  'For the operator, after a rollback that no identity shows (pg_resetwal, a base backup started as it is): refuses every token given out so far. Gives the new floor.';

SELECT fenceguard.end_migration(2, 'tokens');
COMMIT;
