#!/bin/bash
# A dump that is restored, and a copy of the database, do not accept what the original gave out. Run by ./run.
set -euo pipefail
sql() { local role=$1 where=$2; shift 2; PGUSER=$role PGDATABASE=$where psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
number=0 planned=24
echo "1..$planned"
is() { number=$((number + 1)); if [ "$1" = "$2" ]; then echo "ok $number - $3"; else echo "not ok $number - $3"; echo "# got: $1"; echo "# wanted: $2"; fi; }
matches() { if [[ $1 == *"$2"* ]]; then is "$2" "$2" "$3"; else is "$1" "$2" "$3"; fi; }
copy=${database}_copy
t=$(sql "$application" "$database" -c 'SELECT fenceguard.reserve_tokens(10)')
sql "$application" "$database" -c "SELECT fenceguard.claim('copy/1', $t, 'h')" >/dev/null

# pg_dump and restore into the same cluster
if [[ " ${FENCEGUARD_TEST_SKIP:-} " == *" pg_dump "* ]]; then
  for number in {1..19}; do echo "ok $number - # SKIP no pg_dump for this server"; done
else
  # Tables whose attribute numbers will be others after the restore: what stands at the key's old number is then another column, or none.
  sql "$owner" "$database" >/dev/null <<'SQL'
CREATE TABLE app.moved (gone int, id int, other int, PRIMARY KEY (id));
CREATE TABLE app.moved_part (gone int, a int, id int, other int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE app.moved_part_1 PARTITION OF app.moved_part FOR VALUES FROM (0) TO (1000);
CREATE TABLE app.last (gone int, other int, id int, PRIMARY KEY (id));
CREATE TABLE app.last_part (gone int, other int, id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE app.last_part_1 PARTITION OF app.last_part FOR VALUES FROM (0) TO (1000);
CREATE TABLE app.moved_fence (gone int, id int PRIMARY KEY, n int);
ALTER TABLE app.moved DROP COLUMN gone;
ALTER TABLE app.moved_part DROP COLUMN gone;
ALTER TABLE app.last DROP COLUMN gone;
ALTER TABLE app.last_part DROP COLUMN gone;
ALTER TABLE app.moved_fence DROP COLUMN gone;
INSERT INTO app.moved VALUES (1, 501), (2, 502);
INSERT INTO app.moved_part VALUES (7, 1, 501), (7, 2, 502);
INSERT INTO app.last VALUES (501, 1), (502, 2);
INSERT INTO app.last_part VALUES (501, 1), (502, 2);
INSERT INTO app.moved_fence VALUES (1, 0);
SELECT fenceguard.protect('app.moved', 'moved/{id}'), fenceguard.protect('app.moved_part', 'moved/{id}'),
       fenceguard.protect('app.last', 'moved/{id}'), fenceguard.protect('app.last_part', 'moved/{id}'),
       fenceguard.add_row_fence('app.moved_fence');
SQL
  sql "$administrator" "$database" -c "CREATE DATABASE $copy"
  PGUSER=$administrator pg_dump -n fenceguard -n app "$database" | PGUSER=$administrator psql -qAtX -d "$copy" >/dev/null
  is "$(sql "$application" "$copy" -c "SELECT fenceguard.claim('copy/1', $((t + 1)), 'h')" 2>&1 | grep -c 'the server was promoted or restored')" 1 "a restored dump refuses claims at first"
  n=$(sql "$application" "$copy" -c 'SELECT fenceguard.reserve_tokens(1)')
  is "$((n > t + 10))" 1 "its tokens start above what the dump had given out"
  is "$(sql "$application" "$copy" -c "SELECT fenceguard.claim('copy/1', $((t + 1)), 'h')" 2>&1 | grep -c "stale token: presented $((t + 1)), current $n")" 1 "grants from before are refused"
  is "$(sql "$application" "$copy" -c "SELECT claimed_xid IS NOT NULL FROM fenceguard.claim('copy/1', $n, 'h')")" t "new ones are accepted"
  is "$(sql "$application" "$copy" -c "SELECT count(*) FROM fenceguard.altered_objects()")" 0 "the restored schema is as recorded"
  write() { sql "$owner" "$copy" -v VERBOSITY=terse -c "BEGIN" -c "SELECT FROM fenceguard.claim('$1', $n, 'h')" -c "$2" -c "COMMIT" 2>&1 | grep -v '^$' || true; }
  # 501 and 502 stand where the key stood, and 7 before it in the partitioned table
  for table in moved moved_part; do
    is "$(write moved/1 "UPDATE app.$table SET other = 503 WHERE id = 1")" "" "$table: the claim of the row's key opens it"
    refused=$(write moved/502 "UPDATE app.$table SET other = 502 WHERE id = 2")
    matches "$refused" "has not claimed moved/2" "$table: a claim of what stands at the key's old number does not"
    refused=$(write moved/7 "DELETE FROM app.$table WHERE id = 2")
    matches "$refused" "has not claimed moved/2" "$table: nor one of another column"
  done
  for table in last last_part; do
    is "$(write moved/1 "UPDATE app.$table SET other = 503 WHERE id = 1")" "" "$table: no column stands at the key's old number; the claim opens it"
    is "$(write moved/1 "UPDATE app.$table SET id = 3 WHERE id = 1" | grep -o 'has not claimed.*')" "has not claimed moved/3" "$table: the key does not change into another"
    refused=$(write moved/502 "UPDATE app.$table SET other = 502 WHERE id = 2")
    matches "$refused" "has not claimed moved/2" "$table: another column is not taken for it"
  done
  is "$(sql "$owner" "$copy" -c "SELECT count(*) FROM fenceguard.audit WHERE severity = 'error'")" 0 "audit finds no error in the restored database"
  is "$(sql "$owner" "$copy" -c "UPDATE app.moved_fence SET n = 1" 2>&1 | grep -c 'fencing_token')" 1 "the row fence stands"
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
