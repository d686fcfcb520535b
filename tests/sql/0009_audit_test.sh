#!/bin/bash
# fenceguard.audit finds each planted fault, is silent on a good database, and each remedy that can be run as it stands mends
# its finding. Then a table owner who owns nothing else: with sql/roles/table_owner.sql he can protect, and see.
# A script and no .sql, because roles are involved that a superuser has to make and take away again.
set -euo pipefail
table_owner=fg_table_owner_$$
as() { local role=$1; shift; PGUSER=$role PGDATABASE=$database psql -qAtX -v ON_ERROR_STOP=1 "$@"; }
count=0
is() { count=$((count + 1)); if [ "$1" = "$2" ]; then echo "ok $count - $3"; else echo "not ok $count - $3"; echo "# have: $1"; echo "# want: $2"; fi; }
matches() { count=$((count + 1)); if [[ $1 == *"$2"* ]]; then echo "ok $count - $3"; else echo "not ok $count - $3"; echo "# have: $1"; echo "# want: $2"; fi; }
findings() { as "$operator" -c "SELECT subject || ': ' || finding FROM fenceguard.audit ORDER BY 1"; }
cleanup() {
  as "$administrator" -c "REVOKE SET ON PARAMETER session_replication_role FROM PUBLIC, $application, $table_owner" >/dev/null 2>&1 || true
  as "$administrator" -c "ROLLBACK PREPARED 'fg_audit'" >/dev/null 2>&1 || true
  as "$administrator" -c "DROP SCHEMA IF EXISTS theirs CASCADE" -c "ALTER DATABASE $database RESET synchronous_commit" \
    -c "REVOKE INSERT ON fenceguard.fence FROM $application" -c "DROP OWNED BY $table_owner" -c "DROP ROLE $table_owner" 2>/dev/null || true
}
trap cleanup EXIT
as "$administrator" -c "CREATE ROLE $table_owner LOGIN" -c "CREATE SCHEMA theirs AUTHORIZATION $table_owner" \
  -c "GRANT USAGE ON SCHEMA theirs TO PUBLIC"
echo 1..56

as "$owner" <<'SQL'
CREATE TABLE app.account (id int PRIMARY KEY, balance bigint);
CREATE TABLE app.part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE app.part_1 PARTITION OF app.part FOR VALUES FROM (0) TO (10);
CREATE TABLE app.ticket (id int PRIMARY KEY, state text);
CREATE TABLE app.ticket_part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE app.ticket_part_1 PARTITION OF app.ticket_part FOR VALUES FROM (0) TO (10);
CREATE TABLE app.plain (id int);
SELECT fenceguard.protect('app.account', 'account/{id}'), fenceguard.protect('app.part', 'part/{id}'),
       fenceguard.add_row_fence('app.ticket'), fenceguard.add_row_fence('app.ticket_part') \g /dev/null
SQL
is "$(findings)" "" "a good database: silent"

# plant FAULT FINDING [REMEDY]: the finding appears, and after its own remedy, or the one given, there is none
plant() {
  as "$administrator" -c "SET ROLE $owner" -c "$1" >/dev/null
  matches "$(findings)" "$2" "found: $2"
  local remedy=${3:-$(as "$operator" -c "SELECT remedy FROM fenceguard.audit WHERE subject || ': ' || finding LIKE '%$2%' LIMIT 1")}
  as "$administrator" -c "SET ROLE $owner" -c "$remedy" >/dev/null
  is "$(findings)" "" "mended by: $remedy"
}
plant "ALTER TABLE app.account DISABLE TRIGGER fenceguard_delete" "account: trigger fenceguard_delete is disabled"
plant "DROP TRIGGER fenceguard_rekey ON app.account" "account: trigger fenceguard_rekey is missing"
plant "CREATE TABLE app.part_2 PARTITION OF app.part FOR VALUES FROM (10) TO (20)" "part_2: trigger fenceguard_truncate is missing"
plant "ALTER TABLE app.part DETACH PARTITION app.part_2" "part_2: has protection triggers and is not protected"
plant "ALTER TABLE app.account RENAME id TO number" "account: the key columns of its template were renamed" \
      "ALTER TABLE app.account RENAME number TO id"
plant "CREATE TABLE app.child () INHERITS (app.account)" "child: is an inheritance child of app.account"
as "$owner" -c "DROP TABLE app.child, app.part_2"
plant "CREATE TABLE app.bare (id int, fencing_token bigint NOT NULL DEFAULT 0)" "bare: has a column fencing_token and no guard"
plant "ALTER TABLE app.ticket DISABLE TRIGGER \"~fenceguard_token_before\"" 'ticket: trigger "~fenceguard_token_before" is disabled'
plant "DROP TRIGGER fenceguard_token_insert ON app.ticket" "ticket: trigger fenceguard_token_insert is missing"
plant "ALTER TABLE app.ticket_part_1 DISABLE TRIGGER fenceguard_token_row" "ticket_part_1: trigger fenceguard_token_row is disabled"
plant "CREATE INDEX slow ON app.ticket (fencing_token)" "ticket: index slow is on fencing_token"
plant "ALTER TABLE app.ticket DROP CONSTRAINT fencing_token_range" "ticket: fencing_token has no range check"
plant "CREATE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
       CREATE TRIGGER \"~~last\" BEFORE UPDATE ON app.ticket_part FOR EACH ROW EXECUTE FUNCTION app.f()" \
      'ticket_part: trigger "~~last" runs after' "DROP TRIGGER \"~~last\" ON app.ticket_part"
plant "GRANT INSERT ON fenceguard.fence TO $application" "role $application: has been granted claim() and may INSERT table fenceguard.fence"
as "$administrator" -c "ALTER DATABASE $database SET synchronous_commit = off"
matches "$(findings)" "database $database: synchronous_commit is set to off" "found: synchronous_commit off for the database"
as "$administrator" -c "$(as "$operator" -c "SELECT remedy FROM fenceguard.audit")"
is "$(findings)" "" "mended by its remedy"
as "$administrator" -c "ALTER ROLE $application IN DATABASE $database SET session_replication_role = replica"
matches "$(findings)" "role $application database $database: session_replication_role is set to replica" "found: a role whose sessions fire no trigger"
as "$administrator" -c "$(as "$operator" -c "SELECT remedy FROM fenceguard.audit")"
is "$(findings)" "" "mended by its remedy"
if [ "$(as "$administrator" -c "SHOW server_version_num")" -ge 150000 ]; then
  as "$administrator" -c "GRANT SET ON PARAMETER session_replication_role TO $application"
  matches "$(as "$operator" -c "SELECT severity || ' ' || subject || ': ' || finding FROM fenceguard.audit")" \
    "error role $application: may set session_replication_role" "found: the application's role may switch triggers off"
  as "$administrator" -c "$(as "$operator" -c "SELECT remedy FROM fenceguard.audit")"
  is "$(findings)" "" "mended by its remedy"
  as "$administrator" -c "GRANT SET ON PARAMETER session_replication_role TO $table_owner"
  is "$(as "$operator" -c "SELECT severity || ' ' || subject FROM fenceguard.audit")" "warning role $table_owner" "found: another role that may"
  as "$administrator" -c "REVOKE SET ON PARAMETER session_replication_role FROM $table_owner" \
    -c "GRANT SET ON PARAMETER session_replication_role TO PUBLIC"
  is "$(as "$operator" -c "SELECT severity || ' ' || subject FROM fenceguard.audit")" "error PUBLIC" "found: everybody may"
  as "$administrator" -c "$(as "$operator" -c "SELECT remedy FROM fenceguard.audit")"
  is "$(findings)" "" "mended by its remedy"
else
  for i in 1 2 3 4 5; do count=$((count + 1)); echo "ok $count - # SKIP no SET privilege before PostgreSQL 15"; done
fi

# Open transactions.
token=$(as "$owner" -c "SELECT fenceguard.reserve_tokens(1)")
matches "$(as "$owner" -c "BEGIN" -c "SELECT FROM fenceguard.claim('plain/1', $token, 'h')" -c "INSERT INTO app.plain VALUES (1)" \
  -c "SELECT subject || ': ' || finding FROM fenceguard.audit" -c "ROLLBACK")" "plain: a guarded transaction is writing it now" "found: a table that a guarded transaction writes without protection"
if [ "$(as "$administrator" -c "SHOW max_prepared_transactions")" != 0 ]; then
  as "$owner" -c "BEGIN" -c "SELECT FROM fenceguard.claim('plain/1', $token, 'h')" -c "PREPARE TRANSACTION 'fg_audit'"
  matches "$(findings)" "prepared transaction fg_audit: holds claims since" "found: a prepared transaction that holds a claim"
  as "$owner" -c "$(as "$operator" -c "SELECT remedy FROM fenceguard.audit")"
  is "$(findings)" "" "mended by its remedy"
else
  for i in 1 2; do count=$((count + 1)); echo "ok $count - # SKIP max_prepared_transactions is 0 on this server"; done
fi

# A table of the application's own.
as "$administrator" -c "ALTER TABLE app.account OWNER TO $application"
matches "$(findings)" "role $application, which has been granted claim(), can act as its owner" "found: the application owns a protected table"
as "$administrator" -c "ALTER TABLE app.account OWNER TO $owner"

# A table owner who has EXECUTE and nothing else of the schema.
as "$owner" -v table_owner="$table_owner" -f "$root/sql/roles/table_owner.sql" >/dev/null
is "$(as "$owner" -c "SELECT count(*) FROM pg_class AS c WHERE c.relnamespace = 'fenceguard'::regnamespace AND c.relkind = 'r'
      AND has_table_privilege('$table_owner', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')")" 0 "the table owner has no right on a table of the schema"
as "$table_owner" -c "CREATE TABLE theirs.doc (name text PRIMARY KEY, body text)" -c "GRANT ALL ON theirs.doc TO $application"
is "$(as "$table_owner" -c "SELECT count(*) FROM fenceguard.protect('theirs.doc', 'doc/{name}')")" 6 "he protects his table"
is "$(as "$table_owner" -c "SELECT app.raised('INSERT INTO theirs.doc VALUES (''a'')')")" \
   "TF002 unguarded write to theirs.doc: this transaction has not claimed doc/a" "and is refused himself, without rights on the fence"
token=$(as "$application" -c "SELECT fenceguard.reserve_tokens(1)")
is "$(as "$application" -c "BEGIN" -c "SELECT FROM fenceguard.claim('doc/a', $token, 'h')" -c "SELECT app.raised('INSERT INTO theirs.doc VALUES (''a'')')" -c "COMMIT" | tail -n 1)" "nothing" "the application claims and writes"
is "$(as "$table_owner" -c "SELECT count(*) FROM fenceguard.add_row_fence('theirs.doc')")" 7 "he gives it a row fence"
is "$(as "$table_owner" -c "SELECT app.raised('SELECT fenceguard.protect(''app.plain'', ''x/{id}'')')")" "42501 role $table_owner does not own app.plain" "but not to a table of another's"

# A type of the table owner's, with a cast of his own to text or json, gets no foot in the check.
as "$table_owner" -q <<SQL
CREATE TYPE theirs.trap AS (x int);
CREATE FUNCTION theirs.spring(theirs.trap) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''code of % ran'', current_user; END';
CREATE FUNCTION theirs.spring_json(theirs.trap) RETURNS json LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''code of % ran'', current_user; END';
CREATE CAST (theirs.trap AS text) WITH FUNCTION theirs.spring(theirs.trap) AS ASSIGNMENT;
CREATE CAST (theirs.trap AS json) WITH FUNCTION theirs.spring_json(theirs.trap) AS ASSIGNMENT;
CREATE TABLE theirs.trapped (id theirs.trap, n int);
CREATE TRIGGER by_hand AFTER INSERT ON theirs.trapped REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT
  EXECUTE FUNCTION fenceguard.check_statement('{id}', 'x/', '', 'id', '1');
CREATE TABLE theirs.trapped_row (LIKE theirs.trapped);
CREATE TABLE theirs.trapped_last (n int, id theirs.trap);
CREATE TRIGGER by_hand AFTER INSERT ON theirs.trapped_last REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT
  EXECUTE FUNCTION fenceguard.check_statement('{id}', 'x/', '', 'id', '2');
CREATE TRIGGER by_hand AFTER INSERT ON theirs.trapped_row FOR EACH ROW EXECUTE FUNCTION fenceguard.check_row('{id}', 'x/', '', 'id', '1');
CREATE TABLE theirs.injected (id int, "x'||(SELECT 1/0)||'" int);
CREATE TRIGGER by_hand AFTER INSERT ON theirs.injected REFERENCING NEW TABLE AS fenceguard_rows FOR EACH STATEMENT
  EXECUTE FUNCTION fenceguard.check_statement('{id}', 'x/', '', 'id) , (SELECT 1/0', '1');
SQL
for trapped in trapped trapped_row trapped_last; do
  is "$(as "$table_owner" -c "SELECT app.raised('INSERT INTO theirs.$trapped (id) VALUES (ROW(1))')")" \
     "TF002 unguarded write to theirs.$trapped: this transaction has not claimed x/(1)" "user-defined casts do not run with the schema owner's rights ($trapped)"
done
matches "$(as "$table_owner" -c "SELECT app.raised('INSERT INTO theirs.injected VALUES (1, 1)')")" "TF002" "nor does SQL in a trigger's arguments"

# Nor does a relation of his own in place of the transition table, under a trigger that has none.
for check in "check_statement('{id}', 'x/', '', 'id', '1')" "check_column_1('{id}', 'x/', '', 'id', '1')" \
             "check_column_16('{id}', 'x/', '', 'id', '16')" "check_tokens()"; do
  matches "$(as "$table_owner" <<SQL
CREATE FUNCTION theirs.as_whom() RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE EXCEPTION ''code of % ran'', current_user; END';
CREATE TEMP VIEW fenceguard_rows AS SELECT theirs.as_whom() AS id, theirs.as_whom() AS fencing_token;
GRANT ALL ON fenceguard_rows TO PUBLIC;
CREATE TABLE theirs.stage (id int, fencing_token bigint);
CREATE TRIGGER by_hand AFTER INSERT ON theirs.stage FOR EACH STATEMENT EXECUTE FUNCTION fenceguard.$check;
SELECT app.raised('INSERT INTO theirs.stage VALUES (1, 1)');
DROP TABLE theirs.stage;
DROP VIEW fenceguard_rows;
DROP FUNCTION theirs.as_whom();
SQL
)" "TF002 unguarded write to theirs.stage: a temporary relation bears the name fenceguard_rows" "no code runs with the schema owner's rights in ${check%%(*}"
done
