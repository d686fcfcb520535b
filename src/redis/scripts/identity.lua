-- Stands before the text of every script that has to know which data set it runs on.

-- The identity of this server's data set: master_replid, of a server that is a primary. It changes
-- with every promotion, with every restart of a primary, and when a first replica attaches. A
-- replica carries its primary's, hence the test of the role. The script asks its own server each
-- time: a connection outlives a demotion and a promotion, so what a caller saw when it connected
-- proves nothing. Where INFO is not allowed, or what it says is no random identity, there is none:
-- nil, and why.
local function identity()
  local info = redis.pcall('INFO', 'replication')
  if type(info) ~= 'string' then return nil, 'NO_IDENTITY' end
  if not string.find(info, 'role:master', 1, true) then
    if string.find(info, 'role:slave', 1, true) then return nil, 'NOT_PRIMARY' end
    return nil, 'NO_IDENTITY'
  end
  local id = string.match(info, 'master_replid:(%x+)')
  if not id or #id ~= 40 or id == string.rep(string.sub(id, 1, 1), 40) then
    return nil, 'NO_IDENTITY'
  end
  return id
end

-- Microseconds since 1970, about 2^50.6: exact. Prints as 1.78e+15: format it by '%.0f' where it is
-- stored.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A lease is stored as `holder token since label`; the holder is 32 characters long.
local function is_held_by(value, holder) return value and string.sub(value, 1, 32) == holder end

-- Whether this server may say that a lease is not held. Where the role is hidden, a write that
-- changes nothing tells at least a read-only replica: it refuses HDEL before it looks at the key.
-- On a primary the answer is 0, or WRONGTYPE where somebody else holds the lease.
local function may_deny(lease)
  local id, why = identity()
  if id then return true end
  if why == 'NOT_PRIMARY' then return false end
  local answer = redis.pcall('HDEL', lease, '')
  return type(answer) == 'number' or string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end
