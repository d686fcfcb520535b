-- Deletes a lease that is still its holder's.
-- KEYS  1 lease
-- ARGV  1 holder
-- RELEASED   ALREADY_LOST   NOT_PRIMARY

local value = redis.call('GET', KEYS[1])
if is_held_by(value, ARGV[1]) then
  redis.call('DEL', KEYS[1])
  return {'RELEASED'}
end
if not may_deny(KEYS[1]) then return {'NOT_PRIMARY'} end
return {'ALREADY_LOST'}
