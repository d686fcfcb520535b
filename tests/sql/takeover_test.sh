#!/bin/bash
# Holders in the way, ended or reported: sessions of the application's role, seen and ended by the operator's. Run by ./run.
set -euo pipefail
sql() { local role=$1; shift; PGOPTIONS="-c statement_timeout=30s" PGUSER=$role PGDATABASE=$database psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
number=0 planned=24
echo "1..$planned"
is() { number=$((number + 1)); if [ "$1" = "$2" ]; then echo "ok $number - $3"; else echo "not ok $number - $3"; echo "# got: $1"; echo "# wanted: $2"; fi; }
await() {  # until the query of the superuser says t, for 10 s at most
  for _ in $(seq 200); do [ "$(sql "$administrator" -c "$1")" = t ] && return; sleep 0.05; done
  echo "# gave up waiting for: $1"; return 1
}
work=$(mktemp -d)
pids=()
cleanup() {
  exec 5>&- 6>&- 7>&- 2>/dev/null || true
  for p in "${pids[@]}"; do kill -CONT "$p" 2>/dev/null || true; kill "$p" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
# holder NAME TOKEN RESOURCE: a session of the application's role that claims and then does nothing
holder() {
  mkfifo "$work/$1"
  PGAPPNAME=$1 PGUSER=$application PGDATABASE=$database psql -qAtX <"$work/$1" >"$work/$1.out" 2>&1 & pids+=($!)
}
in_transaction="SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name ="

t=$(sql "$application" -c 'SELECT fenceguard.reserve_tokens(20)')
holder older; exec 5>"$work/older"
echo "BEGIN; SELECT fenceguard.claim('take/1', $t, 'h', 1000, 60000);" >&5
await "$in_transaction 'older'"

is "$(sql "$operator" -c "SELECT token = $t AND pid > 0 AND since IS NOT NULL, state, application_name FROM fenceguard.in_flight")" \
   "t|idle in transaction|older" "the operator sees the claim of another role"
busy=$(sql "$application" -v VERBOSITY=verbose -c "SELECT fenceguard.claim('take/1', $((t + 1)), 'i', 50)" 2>&1 || true)
is "$(grep -c 'TF006: fence busy: resource take/1' <<<"$busy")" 1 "a successor that waited too long: TF006"
is "$(grep -Ec 'DETAIL:  pid [0-9]+, since 2[0-9-]+ .*, application_name older' <<<"$busy")" 1 "with who holds it"
is "$(sql "$application" -c "BEGIN; SET LOCAL lock_timeout = '40ms'" -c "DO \$\$ BEGIN PERFORM fenceguard.claim('take/1', $((t + 1)), 'i'); EXCEPTION WHEN SQLSTATE 'TF006' THEN END \$\$" -c 'SHOW lock_timeout' -c 'ROLLBACK')" \
   "40ms" "no patience given: the session's lock_timeout, which stays"
is "$(sql "$application" -c "SELECT fenceguard.claim('take/1', $((t + 1)), 'i', 0)" 2>&1 | grep -c 'fence busy')" 1 "patience 0 does not wait"
is "$(sql "$application" -c "SELECT fenceguard.evict('take/1', $((t + 1)))" 2>&1 | grep -c 'permission denied')" 1 "the application may not evict"
is "$(sql "$application" -c "UPDATE fenceguard.fence SET token = 1" 2>&1 | grep -c 'permission denied')" 1 "nor write a fence"
is "$(sql "$application" -c "SELECT next FROM fenceguard.token_counter" 2>&1 | grep -c 'permission denied')" 1 "nor read the counter"
is "$(sql "$operator" -c "SELECT * FROM fenceguard.evict('take/1', $t)")" "" "evict leaves a claim that is not older"

# A client that is stopped cannot be ended by itself; its successor has the resource within a second.
kill -STOP "${pids[0]}"
is "$(sql "$operator" -c "SELECT token FROM fenceguard.evict('take/1', $((t + 1)))")" "$t" "evict ends the older claim of a stopped client"
began=$(date +%s%N)
is "$(sql "$application" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('take/1', $((t + 1)), 'i', 5000)")" t "and the successor has it"
is "$((($(date +%s%N) - began) / 1000000 < 1000))" 1 "within a second"

# The same client, without evict: the server ends it after its own bound.
holder sleeper; exec 6>"$work/sleeper"
echo "BEGIN; SELECT fenceguard.claim('take/1', $((t + 1)), 'i', 1000, 2000);" >&6
await "$in_transaction 'sleeper'"
kill -STOP "${pids[1]}"
began=$(date +%s%N)
is "$(sql "$application" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('take/1', $((t + 2)), 'j', 9000)")" t "a paused holder is ended after max_idle_ms"
is "$((($(date +%s%N) - began) / 1000000 < 4000))" 1 "and not much later"

# A client that is stopped while the server sends it a result: the server is not idle, and cannot send on.
# sending NAME TOKEN MAX_IDLE_MS: such a holder. It waits at a gate, so that it is stopped before the result begins.
sending() {
  mkfifo "$work/gate.$1"
  PGAPPNAME=gate PGUSER=$administrator PGDATABASE=$database psql -qAtX <"$work/gate.$1" >/dev/null 2>&1 & pids+=($!)
  exec 7>"$work/gate.$1"
  echo "SELECT pg_advisory_lock(7, 7);" >&7
  await "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'gate' AND state = 'idle' AND query LIKE '%lock(7, 7)%'"
  echo "BEGIN; SELECT fenceguard.claim('take/1', $2, '$1', 1000, $3);
        WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(7, 7))
        SELECT repeat('x', 1000000) FROM gate, generate_series(1, 200);" >"$work/$1.sql"
  PGAPPNAME=$1 PGUSER=$application PGDATABASE=$database psql -qAtX -f "$work/$1.sql" >/dev/null 2>&1 7>&- & pids+=($!)
  await "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$1' AND wait_event = 'advisory'"
  kill -STOP "${pids[-1]}"
  echo "SELECT pg_advisory_unlock(7, 7);" >&7
  exec 7>&-
  await "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$1' AND wait_event = 'ClientWrite'"
}
sending blocked $((t + 3)) 60000
busy=$(sql "$application" -v VERBOSITY=verbose -c "SELECT fenceguard.claim('take/1', $((t + 4)), 'k', 50)" 2>&1 || true)
is "$(grep -Ec 'DETAIL:  pid [0-9]+, since 2[0-9-]+ .*, application_name blocked' <<<"$busy")" 1 "a holder that is stopped while it is being sent to is in the way"
is "$(sql "$operator" -c "SELECT token FROM fenceguard.evict('take/1', $((t + 4)))")" "$((t + 3))" "evict ends it"
began=$(date +%s%N)
is "$(sql "$application" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('take/1', $((t + 4)), 'k', 5000)")" t "and the successor has the resource"
is "$((($(date +%s%N) - began) / 1000000 < 1000))" 1 "within a second"
if [[ ${PGHOST:-/} == /* ]]; then
  for skipped in 1 2; do number=$((number + 1)); echo "ok $number # SKIP tcp_user_timeout has no effect on a Unix socket"; done
else
  sending bounded $((t + 5)) 2000
  began=$(date +%s%N)
  is "$(sql "$application" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('take/1', $((t + 6)), 'l', 20000)")" t "without evict the server ends it as well"
  is "$((($(date +%s%N) - began) / 1000000 < 4000))" 1 "not much later than max_idle_ms"
fi
t=$((t + 4))

# A prepared transaction has no process to end: it is reported.
if [ "$(sql "$administrator" -c 'SHOW max_prepared_transactions')" -gt 0 ]; then
  sql "$application" -c "BEGIN" -c "SELECT fenceguard.claim('take/1', $((t + 3)), 'k')" -c "PREPARE TRANSACTION 'fg_$$'" >/dev/null
  is "$(sql "$operator" -c "SELECT token, state, prepared FROM fenceguard.in_flight")" "$((t + 3))|prepared|fg_$$" "in_flight shows a prepared transaction"
  is "$(sql "$operator" -c "SELECT * FROM fenceguard.evict('take/1', $((t + 4)))" 2>&1 | grep -c "prepared transaction 'fg_$$' holds the resource")" 1 "evict reports it"
  is "$(sql "$application" -v VERBOSITY=verbose -c "SELECT fenceguard.claim('take/1', $((t + 4)), 'l', 0)" 2>&1 | grep -c "prepared transaction fg_$$, since")" 1 "and so does TF006"
  sql "$application" -c "ROLLBACK PREPARED 'fg_$$'"
else
  for skipped in 1 2 3; do number=$((number + 1)); echo "ok $number # SKIP max_prepared_transactions is 0"; done
fi
is "$(sql "$operator" -c "SELECT count(*) FROM fenceguard.in_flight")" 0 "nothing is left open"
[ $number = $planned ] || echo "# Looks like you planned $planned tests but ran $number"
