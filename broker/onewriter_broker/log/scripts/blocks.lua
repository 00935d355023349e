-- Put in front of the scripts that append blocks, behind guard.lua; it is no script of its own.
--
-- KEYS and ARGV are read one after the other, from `key` and `at` on.

local key, at = 0, 1

local function next_key()
  key = key + 1
  return KEYS[key]
end

local function next_argument()
  at = at + 1
  return ARGV[at - 1]
end

local function at_or_below(left, right)
  local left_ledger, left_entry = string.match(left, '^(%d+)-(%d+)$')
  local right_ledger, right_entry = string.match(right, '^(%d+)-(%d+)$')
  left_ledger, right_ledger = tonumber(left_ledger), tonumber(right_ledger)
  if left_ledger ~= right_ledger then return left_ledger < right_ledger end
  return tonumber(left_entry) <= tonumber(right_entry)
end

-- What can be said about a block that may not be appended (any more). An earlier attempt of it can
-- only stand under its own id. Its absence is proof only while the log still begins at or below
-- that id: a successor may have trimmed it.
local function settle(stream, unit, is_owner, block)
  local found = redis.pcall('XRANGE', stream, block.id, block.id)
  if broken(stream, found) then return broken(stream, found) end
  if found[1] then
    local fields = found[1][2]
    for i = 1, #fields, 2 do
      if fields[i] == 'h' and fields[i + 1] == block.chain then
        if not is_owner then return 'UNKNOWN' end
        -- WAIT counts this connection's last write; without one it would vouch for nothing.
        redis.call('HSET', unit, 'beat', block.id)
        return 'OK'
      end
    end
    return 'FENCED'
  end
  if block.never_sent then return 'FENCED' end
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)
  if first[1] and at_or_below(first[1][1], block.id) then return 'FENCED' end
  return 'UNKNOWN'
end

local function append(stream, block)
  local added
  if block.counts == '' then
    added = redis.pcall('XADD', stream, 'NOMKSTREAM', block.id, 'n', block.lengths,
      'p', block.payload, 't', block.time, 'h', block.chain)
  else
    added = redis.pcall('XADD', stream, 'NOMKSTREAM', block.id, 'n', block.lengths,
      'p', block.payload, 't', block.time, 'h', block.chain, 'c', block.counts)
  end
  if not added then return 'LOST' end
  if type(added) == 'table' and string.find(added.err, 'equal or smaller', 1, true) then
    return 'PRESENT'
  end
  return broken(stream, added) or 'OK'
end

local function next_guard(state, unit)
  local kind = next_argument()
  if kind == '' then return nil end
  local key = state
  if kind ~= 'floor' then key = next_key() end
  return {
    kind = kind, key = key, field = next_argument(), number = next_argument(), unit = unit,
  }
end

-- id never_sent (1|0) lengths payload time chain counts ('' = one message each), and the guard: '' or
-- epoch|ownership|floor field number
local function next_block(state, unit)
  return {
    id = next_argument(), never_sent = next_argument() == '1', lengths = next_argument(),
    payload = next_argument(), time = next_argument(), chain = next_argument(),
    counts = next_argument(), guard = next_guard(state, unit),
  }
end

local function raise_floor(guard)
  if guard and guard.raises then
    redis.call('HSET', guard.key, guard.field, guard.number)
  end
end
