-- Offers a block of tokens to the data set that asked for one.
-- KEYS  1 tokens of the partition
-- ARGV  1 ticket  2 first token  3 limit: one more than the last  4 low: see tokens.lua
-- TAKEN   REFUSED   BEHIND limit   NOT_PRIMARY   NO_IDENTITY

local id, why = identity()
if not id then return {why} end
local owner, ticket, limit = unpack(redis.call('HMGET', KEYS[1], 'identity', 'ticket', 'limit'))
if owner ~= id or ticket ~= ARGV[1] then return {'REFUSED'} end
-- The source of tokens handed out numbers that this data set has had: it has gone backwards.
if limit and tonumber(ARGV[2]) < tonumber(limit) then return {'BEHIND', limit} end
redis.call('HSET', KEYS[1], 'next', ARGV[2], 'limit', ARGV[3], 'low', ARGV[4])
redis.call('HDEL', KEYS[1], 'ticket', 'asked')
return {'TAKEN'}
