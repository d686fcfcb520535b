#!/bin/bash
# A dump that is restored, and a copy of the database, do not accept what the original gave out. Run by ./run.
set -euo pipefail
sql() { local role=$1 where=$2; shift 2; PGUSER=$role PGDATABASE=$where psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
number=0 planned=10
echo "1..$planned"
is() { number=$((number + 1)); if [ "$1" = "$2" ]; then echo "ok $number - $3"; else echo "not ok $number - $3"; echo "# got: $1"; echo "# wanted: $2"; fi; }
copy=${database}_copy
t=$(sql "$application" "$database" -c 'SELECT fenceguard.reserve_tokens(10)')
sql "$application" "$database" -c "SELECT fenceguard.claim('copy/1', $t, 'h')" >/dev/null

# pg_dump and restore into the same cluster
if [[ " ${FENCEGUARD_TEST_SKIP:-} " == *" pg_dump "* ]]; then
  for number in 1 2 3 4 5; do echo "ok $number - # SKIP no pg_dump for this server"; done
else
  sql "$administrator" "$database" -c "CREATE DATABASE $copy"
  PGUSER=$administrator pg_dump -n fenceguard "$database" | PGUSER=$administrator psql -qAtX -d "$copy" >/dev/null
  is "$(sql "$application" "$copy" -c "SELECT fenceguard.claim('copy/1', $((t + 1)), 'h')" 2>&1 | grep -c 'the server was promoted or restored')" 1 "a restored dump refuses claims at first"
  n=$(sql "$application" "$copy" -c 'SELECT fenceguard.reserve_tokens(1)')
  is "$((n > t + 10))" 1 "its tokens start above what the dump had given out"
  is "$(sql "$application" "$copy" -c "SELECT fenceguard.claim('copy/1', $((t + 1)), 'h')" 2>&1 | grep -c "stale token: presented $((t + 1)), current $n")" 1 "grants from before are refused"
  is "$(sql "$application" "$copy" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('copy/1', $n, 'h')")" t "new ones are accepted"
  is "$(sql "$application" "$copy" -c "SELECT count(*) FROM fenceguard.altered_objects()")" 0 "the restored schema is as recorded"
  sql "$administrator" "$database" -c "DROP DATABASE $copy"
fi

# A copy of the files: the next reservation sees it.
sql "$administrator" postgres -c "CREATE DATABASE $copy TEMPLATE $database"
m=$(sql "$application" "$copy" -c 'SELECT fenceguard.reserve_tokens(1)')
is "$((m > t + 4000000000))" 1 "a copied database leaps at its first reservation"
is "$(sql "$application" "$copy" -c "SELECT fenceguard.claim('copy/1', $((t + 1)), 'h')" 2>&1 | grep -c 'stale token')" 1 "and refuses the original's grants"
original=$(sql "$application" "$database" -c "SELECT database_identity FROM fenceguard.open_guarded('{copy/1}', '{$((t + 2))}', '{h}', NULL, NULL, NULL, 1, 1)")
other=$(sql "$application" "$copy" -c "SELECT database_identity FROM fenceguard.open_guarded('{copy/1}', '{$m}', '{h}', NULL, NULL, NULL, 1, 1)")
is "$([ "$original" != "$other" ] && echo differ)" differ "the two have different names"
# Two migrators at once: one applies, the other says that it is applied.
sql "$administrator" "$copy" -c 'DROP SCHEMA fenceguard CASCADE' -c "CREATE SCHEMA fenceguard AUTHORIZATION $owner" 2>/dev/null
migrate() { for f in "$root"/sql/migrations/*.up.sql; do PGUSER=$owner PGDATABASE=$copy psql -qAtX -v ON_ERROR_STOP=1 -f "$f" || true; done >/dev/null 2>"$1"; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
migrate "$work/1" & one=$!
migrate "$work/2" & two=$!
wait $one $two
files=$(ls "$root"/sql/migrations/*.up.sql | wc -l)
is "$(cat "$work/1" "$work/2" | grep -c 'is already applied')" "$files" "two migrators at once: each migration is applied by one and refused to the other"
is "$(sql "$owner" "$copy" -c 'SELECT count(*) FROM fenceguard.schema_version')|$(sql "$owner" "$copy" -c 'SELECT count(*) FROM fenceguard.altered_objects()')" "$files|0" "and the schema is whole"
sql "$administrator" "$database" -c "DROP DATABASE $copy"
[ $number = $planned ] || echo "# Looks like you planned $planned tests but ran $number"
