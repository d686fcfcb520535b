-- Takes a lease that has no token yet, for grants that are numbered one by one. Touches one key, so
-- that it works while a cluster moves the slot.
-- KEYS  1 lease
-- ARGV  1 holder  2 ttl in ms  3 execute by, in the server's microseconds  4 label
-- HELD now   BUSY now ms|-1   LATE now   NOT_PRIMARY now

local now = now_us()
if now > tonumber(ARGV[3]) then return {'LATE', now} end
local _, why = identity()
if why == 'NOT_PRIMARY' then return {why, now} end
if redis.call('GET', KEYS[1]) then return {'BUSY', now, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1] .. ' 0 ' .. string.format('%.0f', now) .. ' ' .. ARGV[4],
  'PX', ARGV[2], 'NX')
return {'HELD', now}
