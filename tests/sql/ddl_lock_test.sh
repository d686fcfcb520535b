#!/bin/bash
# protect and add_row_fence on a table that is in use: they wait for their lock in small pieces, so that writers go on, give up
# after a while and change nothing, and succeed where the way gets free in time. No rewrite. Run by ./run.
set -euo pipefail
sql() { local role=$1; shift; PGOPTIONS="-c statement_timeout=60s" PGUSER=$role PGDATABASE=$database psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
number=0 planned=13
echo "1..$planned"
is() { number=$((number + 1)); if [ "$1" = "$2" ]; then echo "ok $number - $3"; else echo "not ok $number - $3"; echo "# got: $1"; echo "# wanted: $2"; fi; }
await() {  # until the query of the superuser says t, for 30 s at most
  for _ in $(seq 600); do [ "$(sql "$administrator" -c "$1")" = t ] && return; sleep 0.05; done
  echo "# gave up waiting for: $1"; return 1
}
work=$(mktemp -d) holder=
trap 'exec 5>&- 2>/dev/null || true; [ -z "$holder" ] || kill "$holder" 2>/dev/null || true; rm -rf "$work"' EXIT

for table in guarded fenced; do
  sql "$owner" -c "CREATE TABLE app.$table (id int PRIMARY KEY, n int)" -c "INSERT INTO app.$table SELECT g, 0 FROM generate_series(1, 100) AS g" \
    -c "GRANT ALL ON app.$table TO $application"
done
files=$(sql "$owner" -c "SELECT pg_relation_filenode('app.fenced')")
hold() {  # a transaction that has written both tables and stays open
  mkfifo "$work/$1"
  PGAPPNAME=holder PGUSER=$application PGDATABASE=$database psql -qAtX <"$work/$1" >/dev/null 2>&1 & holder=$!
  exec 5>"$work/$1"
  echo "BEGIN; UPDATE app.guarded SET n = 1 WHERE id = 1; UPDATE app.fenced SET n = 1 WHERE id = 1;" >&5
  await "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'holder' AND state = 'idle in transaction' AND query LIKE '%fenced%'"
}
attempt() { PGAPPNAME=ddl sql "$owner" -v VERBOSITY=verbose -c "SELECT count(*) FROM fenceguard.$2" >"$work/$1.out" 2>&1 5>&- & }

hold first
attempt protect "protect('app.guarded', 'guarded/{id}')"; protect=$!
attempt fence "add_row_fence('app.fenced')"; fence=$!
# Writers come through while both wait: their longest wait is one piece of it.
await "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'ddl' AND wait_event_type = 'Lock'"
longest=0
for i in $(seq 8); do
  began=$(date +%s%N)
  sql "$application" -c "UPDATE app.guarded SET n = 2 WHERE id = 10" -c "UPDATE app.fenced SET n = 2 WHERE id = 10"
  took=$((($(date +%s%N) - began) / 1000000))
  if [ $took -gt $longest ]; then longest=$took; fi
done
is "$((longest < 1500))" 1 "writers go on meanwhile (longest $longest ms for two)"
outcome() { if wait "$1"; then ended=done; else ended=refused; fi; }  # in this shell, whose child it is
outcome $protect
is "$ended" refused "protect gives up"
outcome $fence
is "$ended" refused "so does add_row_fence"
is "$(grep -c 55P03 "$work/protect.out")" 1 "protect: 55P03"
is "$(grep -c 55P03 "$work/fence.out")" 1 "add_row_fence: 55P03"
is "$(sql "$owner" -c "SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('app.guarded'::regclass, 'app.fenced'::regclass)")" 0 "nothing was changed"
is "$(sql "$owner" -c "SELECT count(*) FROM pg_attribute WHERE attrelid = 'app.fenced'::regclass AND attname = 'fencing_token'")" 0 "no column was added"

attempt protect "protect('app.guarded', 'guarded/{id}')"; protect=$!
attempt fence "add_row_fence('app.fenced')"; fence=$!
await "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'ddl' AND wait_event_type = 'Lock'"
echo "COMMIT;" >&5
exec 5>&-
outcome $protect
is "$ended" done "protect succeeds once the way is free"
outcome $fence
is "$ended" done "so does add_row_fence"
is "$(sql "$owner" -c "SELECT enabled FROM fenceguard.protected_tables WHERE relation = 'app.guarded'::regclass")" t "the table is protected"
is "$(sql "$owner" -c "SELECT pg_relation_filenode('app.fenced')")" "$files" "the column came without a rewrite"
is "$(sql "$owner" -c "SELECT convalidated FROM pg_constraint WHERE conrelid = 'app.fenced'::regclass AND conname = 'fencing_token_range'")" t "and its range check is validated"
is "$(sql "$owner" -c "SELECT count(*) FROM fenceguard.audit WHERE subject IN ('app.guarded', 'app.fenced', 'guarded', 'fenced')")" 0 "audit has nothing to say"
[ $number = $planned ] || echo "# Looks like you planned $planned tests but ran $number"
