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

-- Lua's stack holds about 8000 words, and a log's whole state may be more: long commands go out in parts.
local words_max = 2000

local function set_fields(key, first, last)
  for at = first, last, words_max do
    redis.call('HSET', key, unpack(ARGV, at, math.min(last, at + words_max - 1)))
  end
end

-- The value of a name in a flat list of names and values; nil: the name is not in it.
local function value_of(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then return list[i + 1] end
  end
  return nil
end

-- A floor of guarded writes never falls, nor does the version that an app has published, whatever late
-- or forgetful call would set it: ARGV gets the higher one. The key is known to be a hash.
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

-- nil when what a guarded write depends on is as it says, otherwise STALE (it is over) or AHEAD (the
-- store does not know of it, or not yet). A floor is only passed or not; `raises` says that it is to
-- be raised together with the write. An epoch counts where the guarding log was fenced since the
-- dataset was registered: a log that lost its tail may still name a tenure that had ended. So with an
-- ownership: its bucket's records must have been settled since. Where its record was dropped, what is
-- at or below its group's floor, or everybody's, is over (own_drop.lua).
local function guard_refusal(guard, generation)
  local number = tonumber(guard.number)
  local fields = { guard.field }
  if guard.kind == 'epoch' then fields = { 'leads', 'epoch', 'generation' } end
  if guard.kind == 'ownership' then
    fields = { guard.field, '\30' .. string.match(guard.field, '^[^\31]*'), '\30\30' }
  end
  if guard.kind == 'ownership' and redis.call('HGET', guard.unit, 'owned') ~= generation then
    return 'AHEAD'
  end
  local held = redis.pcall('HMGET', guard.key, unpack(fields))
  if broken(guard.key, held) then return 'AHEAD' end
  local first, highest = tonumber(held[1] or '0'), tonumber(held[2] or held[1] or '0')
  if not first or not highest then return 'AHEAD' end
  if guard.kind == 'ownership' then
    local everybodys = tonumber(held[3] or '0')
    if not everybodys then return 'AHEAD' end
    highest = held[1] and first or math.max(highest, everybodys)
  end
  if guard.kind == 'floor' then
    guard.raises = first < number
    if first > number then return 'STALE' end
    return nil
  end
  if guard.kind == 'epoch' and held[3] ~= generation then return 'AHEAD' end
  if first == number then return nil end
  if highest >= number then return 'STALE' end
  return 'AHEAD'
end
