-- The tables of the payment service. Apply after fenceguard's own migrations, as the tables' owner:
--   psql -v ON_ERROR_STOP=1 -f schema.sql
BEGIN;
CREATE TABLE IF NOT EXISTS account (
  id bigint PRIMARY KEY,
  balance_cents bigint NOT NULL CHECK (balance_cents >= 0)
);
CREATE TABLE IF NOT EXISTS payment (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  from_account bigint NOT NULL REFERENCES account (id),
  to_account bigint NOT NULL REFERENCES account (id),
  cents bigint NOT NULL CHECK (cents > 0),
  made_at timestamptz NOT NULL DEFAULT now()
);
-- From here on an account is written only by a transaction that has claimed "account/<id>", whatever
-- the client is written in.
SELECT fenceguard.protect('account', 'account/{id}');
COMMIT;
