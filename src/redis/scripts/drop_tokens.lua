-- Takes a partition's tokens away, wherever they are while a cluster moves their slot. A script of
-- its own, because a script that names the lease as well is refused meanwhile.
-- KEYS  1 tokens of the partition
-- DROPPED

redis.call('DEL', KEYS[1])
return {'DROPPED'}
