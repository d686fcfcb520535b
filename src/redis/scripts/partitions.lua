-- Makes the stores of one prefix agree on how many partitions their resources are spread over: two
-- that do not would look for one lease under two names.
-- KEYS  1 where the number is kept
-- ARGV  1 number of partitions
-- AGREED   PARTITIONS number   NOT_PRIMARY

local standing = redis.call('GET', KEYS[1])
if standing and standing ~= ARGV[1] then return {'PARTITIONS', standing} end
if not standing then
  local _, why = identity()  -- a replica that takes writes is nobody to agree with
  if why == 'NOT_PRIMARY' then return {why} end
  redis.call('SET', KEYS[1], ARGV[1])
end
return {'AGREED'}
