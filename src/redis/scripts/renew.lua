-- Extends a lease that is still its holder's; never takes it again.
-- KEYS  1 lease
-- ARGV  1 holder  2 ttl in ms
-- RENEWED   LOST   NOT_PRIMARY

local value = redis.call('GET', KEYS[1])
if is_held_by(value, ARGV[1]) then
  local _, why = identity()  -- a replica that takes writes must not say yes either
  if why == 'NOT_PRIMARY' then return {why} end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'RENEWED'}
end
if not may_deny(KEYS[1]) then return {'NOT_PRIMARY'} end
return {'LOST'}
