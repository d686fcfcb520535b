-- Stands, after identity.lua, before the scripts that give out tokens.
--
-- The hash of a partition holds
--   identity    whose block this is: see identity()
--   next limit  the tokens that are left: next ... limit - 1
--   low         from this token on the next block is fetched ahead
--   ticket      a random word, while a block is wanted. Only a block that is offered with the word
--               that stands is taken: it was reserved after this data set had asked, so it lies
--               above all that was given out before
--   asked       when the ticket was last given to a caller, in microseconds
--   partitions  how many partitions the resources are spread over

local ELECTION_US = 250000   -- how long one caller has for fetching a block before another is asked
local FETCH_AHEAD_US = 1000000

local function ask_for_block(key, ticket, now)
  redis.call('HSET', key, 'ticket', ticket, 'asked', string.format('%.0f', now))
end

-- The next token, and the ticket for fetching ahead where that is due ('' where not). Or nil, and
-- the answer for the caller. `above`: the token must be higher; a block that has given out less is
-- a ghost as a whole, left over from before the database was promoted or restored.
local function take_token(key, id, now, fresh_ticket, partitions, above)
  local owner, next, limit, low, ticket, asked, spread = unpack(redis.call('HMGET', key,
    'identity', 'next', 'limit', 'low', 'ticket', 'asked', 'partitions'))
  if spread and spread ~= partitions then return nil, {'PARTITIONS', now, spread} end
  if owner ~= id then
    redis.call('DEL', key)
    redis.call('HSET', key, 'identity', id, 'partitions', partitions)
    next, ticket, asked = false, false, false
  end
  local left = next and tonumber(next) < tonumber(limit)
  if left and above >= tonumber(next) then
    redis.call('HSET', key, 'limit', next)
    redis.call('HDEL', key, 'ticket', 'asked')  -- what is on its way may be as old as the ghost
    left, ticket, asked = false, false, false
  end
  local since = asked and now - tonumber(asked)
  if not left then
    -- A negative time: the server's clock was set back.
    if ticket and since and since >= 0 and since < ELECTION_US then
      return nil, {'WAIT_BLOCK', now, since}
    end
    ask_for_block(key, ticket or fresh_ticket, now)
    return nil, {'NEED_BLOCK', now, ticket or fresh_ticket}
  end
  redis.call('HINCRBY', key, 'next', 1)
  if tonumber(next) < tonumber(low) or (since and since >= 0 and since < FETCH_AHEAD_US) then
    return next, ''
  end
  ask_for_block(key, ticket or fresh_ticket, now)
  return next, ticket or fresh_ticket
end
