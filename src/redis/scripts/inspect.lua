-- Who holds a lease.
-- KEYS  1 lease
-- HELD value ms|-1   FREE   NOT_PRIMARY

local value = redis.call('GET', KEYS[1])
if value then return {'HELD', value, redis.call('PTTL', KEYS[1])} end
if not may_deny(KEYS[1]) then return {'NOT_PRIMARY'} end
return {'FREE'}
