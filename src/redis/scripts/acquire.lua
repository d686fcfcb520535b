-- Takes a lease and gives it a token.
-- KEYS  1 lease  2 tokens of the lease's partition
-- ARGV  1 holder  2 ttl in ms  3 a ticket that nobody has used  4 execute by, in the server's
--       microseconds  5 number of partitions  6 label
-- GRANTED now token ticket|''   BUSY now ms|-1   LATE now
-- NEED_BLOCK now ticket   WAIT_BLOCK now us
-- NOT_PRIMARY now   NO_IDENTITY now   PARTITIONS now number

local now = now_us()
-- A request that was held up on its way must not take a lease that its caller has given up, and
-- perhaps undone, already.
if now > tonumber(ARGV[4]) then return {'LATE', now} end
local id, why = identity()
if not id then return {why, now} end
if redis.call('GET', KEYS[1]) then return {'BUSY', now, redis.call('PTTL', KEYS[1])} end
local token, rest = take_token(KEYS[2], id, now, ARGV[3], ARGV[5], 0)
if not token then return rest end
-- The last write: where one before it is refused, nothing is held.
redis.call('SET', KEYS[1],
  ARGV[1] .. ' ' .. token .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[6],
  'PX', ARGV[2], 'NX')
return {'GRANTED', now, token, rest}
