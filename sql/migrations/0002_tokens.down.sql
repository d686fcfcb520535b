-- Takes 0002 away. Applied again, tokens go on above what was given out, because they start at the clock.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT fenceguard.begin_rollback(2, 'tokens');
DROP FUNCTION fenceguard.raise_floor();
DROP FUNCTION fenceguard.reserve_tokens(bigint);
DROP FUNCTION fenceguard.advance_counter(bigint, bool);
DROP FUNCTION fenceguard.database_identity();
DROP FUNCTION fenceguard.current_server();
DROP TABLE fenceguard.server_state;
DROP TABLE fenceguard.token_counter;
SELECT fenceguard.end_rollback(2);
COMMIT;
