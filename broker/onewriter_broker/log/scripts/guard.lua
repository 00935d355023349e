-- Put in front of every other script of this folder; it is no script of its own.
--
-- Invariant: a binding may write only to the dataset it was made for, while the bucket's record
-- names this very binding: owner and version, so that an owner which lost the bucket and took it
-- again cannot be spoken for by what it sent the first time; and not after a newer registration of
-- the dataset. One call reads the dataset's identity once, so no part of the call can see another
-- dataset than the rest.
--
-- A key that holds what no broker wrote there (another type, a number that is none) is answered
-- 'BROKEN <key>: <reason>'. Nothing was written then of what the answer is for, and no other key's
-- writes suffer. Errors that are the server's condition (full, read-only, too few replicas) are
-- none of a key's own: they end the call, which is sent again.

local function dataset_here()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- What a pcall answered means for its key: nil, or the code to answer. What a command says about
-- its own key and arguments begins with one of two words.
local function broken(key, reply)
  if type(reply) ~= 'table' or not reply.err then return nil end
  local word = string.match(reply.err, '^%S+')
  if word ~= 'WRONGTYPE' and word ~= 'ERR' then error(reply) end
  return 'BROKEN ' .. key .. ': ' .. reply.err
end

local function not_a_number(key, field)
  return 'BROKEN ' .. key .. ': ' .. field .. ' is not a number'
end

-- nil when the binding holds, otherwise the code to answer.
local function refusal(unit, dataset, replid, generation, owner, version)
  if dataset ~= replid then return 'REFENCE' end
  local record = redis.pcall('HMGET', unit, 'gen', 'owner', 'version')
  if broken(unit, record) then return broken(unit, record) end
  if not record[1] or not record[2] then return 'LOST' end
  if not tonumber(record[1]) then return not_a_number(unit, 'gen') end
  if tonumber(record[1]) > tonumber(generation) then return 'REFENCE' end
  if record[2] ~= owner then return 'FENCED' end
  if record[3] ~= version then return 'REFENCE' end
  return nil
end

-- Sets ARGV[first..last] (name, value, ...) and removes the fields named by ARGV[last+1..]; nil, or
-- the code to answer: then nothing was changed.
local function change_fields(key, first, last)
  local changed
  if last >= first then changed = redis.pcall('HSET', key, unpack(ARGV, first, last)) end
  if broken(key, changed) then return broken(key, changed) end
  if #ARGV > last then changed = redis.pcall('HDEL', key, unpack(ARGV, last + 1)) end
  return broken(key, changed)
end

-- nil when the log's state names the token's owner, otherwise the code to answer.
local function token_refusal(state, token)
  local held = redis.pcall('HGET', state, 'tok')
  if broken(state, held) then return broken(state, held) end
  if not held then return 'LOST' end
  if held ~= token then return 'FENCED' end
  return nil
end
