-- 0006: who holds what, and how to end a holder that is in the way.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_migration(6, 'takeover');

-- Open claims. Runs as the schema's owner, who sees the sessions of other roles if pg_read_all_stats was granted to it.
CREATE FUNCTION fenceguard.open_claims(
  OUT resource text, OUT token bigint, OUT holder text, OUT pid int, OUT since timestamptz, OUT age interval,
  OUT state text, OUT wait_event text, OUT application_name text, OUT prepared text)
RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH held AS MATERIALIZED (SELECT * FROM fenceguard.advisory_locks()),
  published AS (  -- tokens, recognised by bit 62 on top
    SELECT h.owner, h.pid, h.prepared, h.lock & 9007199254740991 AS token
      FROM held h WHERE NOT h.exclusive AND h.lock >> 53 = 512),
  known AS (      -- resources whose fence has been committed before; the linking lock says which token is whose
    SELECT p.owner, p.token, f.resource, CASE WHEN f.token = p.token THEN f.holder END AS holder
      FROM fenceguard.fence f
      JOIN held e ON e.exclusive AND e.lock = hashtextextended(f.resource, 439788397413)
      JOIN published p ON p.owner = e.owner
     WHERE EXISTS (SELECT FROM held s WHERE s.owner = p.owner AND NOT s.exclusive
                      AND s.lock = hashtextextended(f.resource, p.token) | (1::bigint << 63)))
  SELECT k.resource, p.token, k.holder, p.pid, coalesce(x.prepared, a.xact_start),
         clock_timestamp() - coalesce(x.prepared, a.xact_start),
         CASE WHEN p.pid IS NULL THEN 'prepared' ELSE a.state END, a.wait_event, a.application_name, p.prepared
    FROM published p
    LEFT JOIN known k ON k.owner = p.owner AND k.token = p.token
    LEFT JOIN pg_stat_activity a ON a.pid = p.pid
    LEFT JOIN pg_prepared_xacts x ON x.gid = p.prepared
$$;

CREATE VIEW fenceguard.in_flight AS SELECT * FROM fenceguard.open_claims();
COMMENT ON VIEW fenceguard.in_flight IS
  'Claims of transactions that are still open. The resource is NULL for a first claim: its name is not visible before COMMIT.';
COMMENT ON COLUMN fenceguard.in_flight.prepared IS
  'The identifier of a prepared transaction: no timeout ends it and evict() cannot, only COMMIT PREPARED or ROLLBACK PREPARED.';

-- Ends the sessions whose open claim of the resource has a token below the bound, and returns those it ended. Never a
-- newer claim, and never one that waits for its synchronous standby: ended there, it would become visible without
-- having been replicated. (It may begin that wait between the look and the signal; the server offers nothing better.)
CREATE FUNCTION fenceguard.evict(resource text, below bigint, OUT pid int, OUT token bigint)
RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found_claim record;
BEGIN
  IF resource IS NULL OR below IS NULL THEN
    RAISE EXCEPTION 'resource and below must be given' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  FOR found_claim IN
    WITH held AS MATERIALIZED (SELECT * FROM fenceguard.advisory_locks())
    SELECT e.pid, e.prepared, t.lock & 9007199254740991 AS token, a.query = '<insufficient privilege>' AS hidden, a.wait_event
      FROM held e
      JOIN held t ON t.owner = e.owner AND NOT t.exclusive AND t.lock >> 53 = 512
      JOIN held s ON s.owner = e.owner AND NOT s.exclusive
           AND s.lock = hashtextextended(evict.resource, t.lock & 9007199254740991) | (1::bigint << 63)
      LEFT JOIN pg_stat_activity a ON a.pid = e.pid
     WHERE e.exclusive AND e.lock = hashtextextended(evict.resource, 439788397413)
           AND t.lock & 9007199254740991 < below
  LOOP
    IF found_claim.pid IS NULL THEN
      RAISE WARNING 'prepared transaction % holds the resource and cannot be evicted', quote_literal(found_claim.prepared)
        USING HINT = format('ROLLBACK PREPARED %L, or COMMIT PREPARED.', found_claim.prepared);
    ELSIF found_claim.hidden IS NOT FALSE THEN
      RAISE EXCEPTION 'cannot see what pid % is doing', found_claim.pid USING ERRCODE = 'insufficient_privilege',
        HINT = format('GRANT pg_read_all_stats, pg_signal_backend TO %I;', current_user);
    ELSIF found_claim.wait_event = 'SyncRep' THEN
      RAISE WARNING 'pid % is committing and waits for its synchronous standby; it is left alone', found_claim.pid;
    ELSIF pg_terminate_backend(found_claim.pid) THEN
      pid := found_claim.pid;
      token := found_claim.token;
      RETURN NEXT;
    END IF;
  END LOOP;
END $$;
COMMENT ON FUNCTION fenceguard.evict(text, bigint) IS
  'Ends the sessions that hold the resource under a token lower than below; returns them.';

SELECT fenceguard.end_migration(6, 'takeover');
COMMIT;
