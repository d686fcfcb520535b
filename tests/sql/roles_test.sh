#!/bin/bash
# The way of ../../sql/README.md, without a superuser from beginning to end: an administrator who may create roles and databases
# makes the roles and applies the migrations; then an application with EXECUTE only works, and can do nothing else. Run by ./run.
set -euo pipefail
number=0 planned=26
echo "1..$planned"
is() { number=$((number + 1)); if [ "$1" = "$2" ]; then echo "ok $number - $3"; else echo "not ok $number - $3"; echo "# got: $1"; echo "# wanted: $2"; fi; }
copy=${database}_roles
chief=fg_chief_$$ schema_owner=fg_schema_$$ service=fg_service_$$ person=fg_person_$$ shop=fg_shop_$$
app_role=fg_app_role_$$ op_role=fg_op_role_$$ table_role=fg_table_role_$$
sql() { local role=$1; shift; PGUSER=$role PGDATABASE=$copy psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
super() { PGUSER=$administrator PGDATABASE=postgres psql -qAtX "$@"; }
cleanup() {
  super -c "DROP DATABASE IF EXISTS $copy" >/dev/null 2>&1 || true
  super -c "DROP ROLE IF EXISTS $service, $person, $shop, $app_role, $op_role, $table_role, $schema_owner, $chief" >/dev/null 2>&1 || true
}
trap cleanup EXIT

super -c "CREATE ROLE $chief LOGIN CREATEROLE CREATEDB"
PGUSER=$chief psql -qX -d postgres -c "CREATE DATABASE $copy"
is "$(sql "$chief" -c "SELECT rolsuper FROM pg_roles WHERE rolname = current_user")" f "the administrator is no superuser"
sql "$chief" -c "CREATE ROLE $schema_owner" -c "GRANT $schema_owner TO CURRENT_USER"
sql "$chief" -v owner="$schema_owner" -v takeover=off -f "$root/sql/roles/owner.sql"
is "$(sql "$chief" -c "SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'fenceguard'")" "$schema_owner" "owner.sql makes the schema"
for role in "$app_role" "$op_role" "$table_role"; do sql "$chief" -c "CREATE ROLE $role"; done
is "$(sql "$chief" -c "SELECT has_database_privilege('$schema_owner', current_database(), 'CREATE')")" f "its owner may create nothing else in the database"
export PGOPTIONS="-c role=$schema_owner"
for f in "$root"/sql/migrations/*.up.sql; do sql "$chief" -f "$f" >/dev/null; done
sql "$chief" -v application="$app_role" -f "$root/sql/roles/application.sql"
sql "$chief" -v operator="$op_role" -f "$root/sql/roles/operator.sql"
sql "$chief" -v table_owner="$table_role" -f "$root/sql/roles/table_owner.sql"
is "$(sql "$chief" -c "SELECT count(*) FROM fenceguard.altered_objects()")" 0 "the migrations are applied"
unset PGOPTIONS
sql "$chief" -c "CREATE ROLE $service LOGIN IN ROLE $app_role" -c "CREATE ROLE $person LOGIN IN ROLE $op_role" \
  -c "CREATE ROLE $shop LOGIN IN ROLE $table_role" -c "CREATE SCHEMA shop" -c "GRANT USAGE, CREATE ON SCHEMA shop TO $shop" \
  -c "GRANT USAGE ON SCHEMA shop TO $service"
sql "$shop" -c "CREATE TABLE shop.account (id int PRIMARY KEY, balance int)" -c "GRANT ALL ON shop.account TO $service" \
  -c "CREATE TABLE shop.ticket (id int PRIMARY KEY, state text)" -c "GRANT ALL ON shop.ticket TO $service" \
  -c "INSERT INTO shop.account VALUES (1, 10)" -c "INSERT INTO shop.ticket VALUES (1, 'new')" \
  -c "SELECT FROM fenceguard.protect('shop.account', 'account/{id}')" -c "SELECT FROM fenceguard.add_row_fence('shop.ticket')" >/dev/null

# The application: all of its work.
t=$(sql "$service" -c "SELECT fenceguard.reserve_tokens(2)")
is "$((t > 0))" 1 "the application reserves tokens"
is "$(sql "$service" -c "BEGIN" -c "SELECT replayed FROM fenceguard.replay('s', 'k', '1')" -c "SELECT FROM fenceguard.claim('account/1', $t, 'h')" \
  -c "UPDATE shop.account SET balance = 9 RETURNING balance" -c "SELECT fenceguard.store_answer('s', 'k', '1', '9', $t)" -c "COMMIT" |
  grep -v '^$' | paste -sd ' ')" "f 9" "claims, writes and stores an answer"
is "$(sql "$service" -c "SELECT replayed, answer FROM fenceguard.replay('s', 'k', '1')")" "t|9" "gets it again"
is "$(sql "$service" -c "SELECT outcome FROM fenceguard.resolve_key('s', 'k', fenceguard.fingerprint('1'))")" committed "resolves it"
is "$(sql "$service" -c "UPDATE shop.ticket SET state = 'done', fencing_token = $t RETURNING state")" done "writes a row with its token"
# And nothing else.
denied() { is "$(sql "$service" -c "$1" 2>&1 | grep -c 'permission denied\|must be owner\|cannot\|must be member')" 1 "the application may not: $2"; }
is "$(sql "$service" -c "SELECT string_agg(c.relname, ' ') FROM pg_class AS c WHERE c.relnamespace = 'fenceguard'::regnamespace
      AND c.relkind IN ('r', 'v') AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER, REFERENCES')")" "" "it can write no table of the schema"
is "$(sql "$service" -c "SELECT string_agg(c.relname, ' ') FROM pg_class AS c WHERE c.relnamespace = 'fenceguard'::regnamespace
      AND c.relkind IN ('r', 'v') AND has_table_privilege(c.oid, 'SELECT')")" "schema_version" "and read which migrations stand"
denied "UPDATE fenceguard.fence SET token = 1" "lower a fence"
denied "DELETE FROM fenceguard.idempotency" "delete a key"
denied "UPDATE fenceguard.token_counter SET next = 1" "turn the counter back"
denied "SELECT fenceguard.evict('account/1', 9007199254740991)" "evict"
denied "SELECT fenceguard.forget_fences('0')" "forget"
denied "SELECT fenceguard.raise_floor()" "raise the floor"
denied "ALTER TABLE shop.account DISABLE TRIGGER ALL" "disable triggers"
denied "SELECT fenceguard.unprotect('shop.account')" "take protection away"
denied "CREATE TABLE fenceguard.mine (id int)" "make something in the schema"
# The operator.
is "$(sql "$person" -c "SELECT count(*) FROM fenceguard.in_flight")" 0 "the operator sees open claims"
is "$(sql "$person" -c "SELECT fenceguard.forget_fences('0'), fenceguard.forget_keys('0')")" "1|1" "forgets"
is "$(sql "$person" -c "SELECT fenceguard.raise_floor() > $t")" t "raises the floor"
is "$(sql "$person" -c "SELECT severity || ' ' || finding FROM fenceguard.audit")" "" "audit has nothing to say"
is "$(sql "$person" -c "UPDATE fenceguard.fence SET token = 1" 2>&1 | grep -c 'permission denied')" 1 "and writes no fence either"
is "$(sql "$chief" -c "SELECT count(*) FROM pg_proc AS p WHERE p.pronamespace = 'fenceguard'::regnamespace AND
      (p.proconfig IS NULL OR NOT 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) OR has_function_privilege('public', p.oid, 'EXECUTE'))")" 0 \
   "every function has a pinned search_path and none is PUBLIC's"
[ $number = $planned ] || echo "# Looks like you planned $planned tests but ran $number"
