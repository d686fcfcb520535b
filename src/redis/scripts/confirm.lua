-- Numbers a grant that still holds. The token was reserved after the hold was taken (or, for a
-- fresh token, before this script looks whether it still is): the other order would give a paused
-- old holder the highest number.
-- KEYS  1 lease  2 tokens of the lease's partition; may be missing
-- ARGV  1 holder  2 token
-- GRANTED token   LOST   OVERTAKEN token   NOT_PRIMARY

local _, why = identity()
if why == 'NOT_PRIMARY' then return {why} end
local value = redis.call('GET', KEYS[1])
if not is_held_by(value, ARGV[1]) then return {'LOST'} end
local present, tail = string.match(value, '^%x+ (%d+)( .*)$')
if tonumber(ARGV[2]) <= tonumber(present) then return {'OVERTAKEN', present} end
-- A block lies below this token. Callers who number by blocks on the same data must ask for a new
-- one.
if KEYS[2] then redis.call('DEL', KEYS[2]) end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2] .. tail, 'KEEPTTL')
return {'GRANTED', ARGV[2]}
