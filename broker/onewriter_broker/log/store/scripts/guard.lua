-- The guard of every write: an include of every script of this folder; not a script itself.
--
-- Invariant: a binding writes only to the dataset it was made for, only while the bucket's record names
-- this binding (owner and version), and not after a newer registration of the dataset. The version
-- rejects late calls of an owner that lost the bucket and acquired it again. One call reads the
-- dataset's identity once, so all parts of a call see the same dataset.
--
-- A key with content that no broker wrote (another type, a field that is not a number) is answered
-- 'BROKEN <key>: <reason>'. The script then wrote nothing of what the answer is for, and writes to other
-- keys are not affected. Errors of the server's condition (full, read-only, too few replicas) do not
-- belong to a key: they end the call, and the broker sends it again.

-- The functions next_* read KEYS and ARGV one after the other. `key` is the index of the key that was read
-- last, and `at` is the index of the next argument.

local key, at = 0, 1

local function next_key()
  key = key + 1
  return KEYS[key]
end

local function next_argument()
  at = at + 1
  return ARGV[at - 1]
end

local function dataset_here()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- nil if the reply is not an error; otherwise the code to answer. Errors about the key or its arguments begin
-- with WRONGTYPE or ERR; all others end the call.
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
local function binding_refusal(unit, dataset, replid, generation, owner, version)
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

-- Lua's stack holds about 8000 words, and a log's state may have more: long commands are sent in parts.
local words_max = 2000

local function set_fields(key, first, last)
  for at = first, last, words_max do
    redis.call('HSET', key, unpack(ARGV, at, math.min(last, at + words_max - 1)))
  end
end

-- The value of a name in a flat list of names and values; nil if the list lacks the name.
local function value_of(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then return list[i + 1] end
  end
  return nil
end

-- Floors (guard:*) and published versions (txn:*) never decrease: if the stored value is higher, it replaces
-- the value in ARGV[first..last] (name, value, ...). The key must be a hash.
local function keep_floors(key, first, last)
  for i = first, last, 2 do
    if string.sub(ARGV[i], 1, 6) == 'guard:' or string.sub(ARGV[i], 1, 4) == 'txn:' then
      local held = redis.call('HGET', key, ARGV[i])
      if held and (tonumber(held) or 0) > tonumber(ARGV[i + 1]) then ARGV[i + 1] = held end
    end
  end
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

-- The next three functions compare the number of a block's guard with the number in the store, one per kind
-- of guard. They return nil if the guard holds, STALE if its number is over, and AHEAD if the store does not
-- know the number, or not yet. A stored value that is not a number is not known either.

-- An epoch of the guarding log. The log's state counts only if the log was fenced in this registration: a log
-- that lost its tail may name a tenure that has ended.
local function epoch_refusal(guard, number, generation)
  local held = redis.pcall('HMGET', guard.key, 'leads', 'epoch', 'generation')
  if broken(guard.key, held) then return 'AHEAD' end
  local leading, newest = tonumber(held[1] or '0'), tonumber(held[2] or held[1] or '0')
  if not leading or not newest then return 'AHEAD' end
  if held[3] ~= generation then return 'AHEAD' end
  if leading == number then return nil end
  if newest >= number then return 'STALE' end
  return 'AHEAD'
end

-- The generation of an ownership. The bucket's records count only if they were settled in this registration
-- (own.lua). Without a record, every generation up to the floor of its group, or the floor that other groups
-- share, is over (own_drop.lua).
local function ownership_refusal(guard, number, generation)
  if redis.call('HGET', guard.unit, 'owned') ~= generation then return 'AHEAD' end
  local group_floor_field = '\30' .. string.match(guard.field, '^[^\31]*')
  local held = redis.pcall('HMGET', guard.key, guard.field, group_floor_field, '\30\30')
  if broken(guard.key, held) then return 'AHEAD' end
  local current = tonumber(held[1] or '0')
  local group_floor, shared_floor = tonumber(held[2] or '0'), tonumber(held[3] or '0')
  if not current or not group_floor or not shared_floor then return 'AHEAD' end
  if current == number then return nil end
  local newest = held[1] and current or math.max(group_floor, shared_floor)
  if newest >= number then return 'STALE' end
  return 'AHEAD'
end

-- The floor of a guard of another bucket. `guard.raises`: the append must raise the floor to this number.
local function floor_refusal(guard, number)
  local held = redis.pcall('HMGET', guard.key, guard.field)
  if broken(guard.key, held) then return 'AHEAD' end
  local floor = tonumber(held[1] or '0')
  if not floor then return 'AHEAD' end
  guard.raises = floor < number
  if floor > number then return 'STALE' end
  return nil
end

local function guard_refusal(guard, generation)
  local number = tonumber(guard.number)
  if guard.kind == 'epoch' then return epoch_refusal(guard, number, generation) end
  if guard.kind == 'ownership' then return ownership_refusal(guard, number, generation) end
  return floor_refusal(guard, number)
end
