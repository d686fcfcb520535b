-- Gives a grant that still holds a fresh token.
-- KEYS  1 lease  2 tokens of the lease's partition
-- ARGV  1 holder  2 a ticket that nobody has used  3 a token that the new one must exceed  4 number
--       of partitions
-- GRANTED now token ticket|''   LOST now   NEED_BLOCK now ticket   WAIT_BLOCK now us
-- NOT_PRIMARY now   NO_IDENTITY now   PARTITIONS now number

local now = now_us()
local id, why = identity()
if not id then return {why, now} end
local value = redis.call('GET', KEYS[1])
if not is_held_by(value, ARGV[1]) then return {'LOST', now} end
local present, tail = string.match(value, '^%x+ (%d+)( .*)$')
local token, rest = take_token(KEYS[2], id, now, ARGV[2], ARGV[4],
  math.max(tonumber(present), tonumber(ARGV[3])))
if not token then return rest end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token .. tail, 'KEEPTTL')
return {'GRANTED', now, token, rest}
