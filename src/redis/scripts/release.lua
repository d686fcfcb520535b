-- Deletes a lease that is still its holder's.
-- KEYS  1 lease
-- ARGV  1 holder  2 channel for those who wait for it
-- RELEASED   ALREADY_LOST   NOT_PRIMARY

local value = redis.call('GET', KEYS[1])
if is_held_by(value, ARGV[1]) then
  redis.call('DEL', KEYS[1])
  -- The lease is free, whatever follows. Who may not count the listeners publishes without their
  -- number; who may not publish leaves them to their polling.
  local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[2])[2]
  if heard ~= 0 then redis.pcall('PUBLISH', ARGV[2], heard or '') end
  return {'RELEASED'}
end
if not may_deny(KEYS[1]) then return {'NOT_PRIMARY'} end
return {'ALREADY_LOST'}
