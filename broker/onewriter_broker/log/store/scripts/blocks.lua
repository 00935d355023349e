-- Blocks: an include of append.lua and together.lua, after guard.lua and publish.lua; not a script itself.

local function at_or_below(left, right)
  local left_ledger, left_entry = string.match(left, '^(%d+)-(%d+)$')
  local right_ledger, right_entry = string.match(right, '^(%d+)-(%d+)$')
  left_ledger, right_ledger = tonumber(left_ledger), tonumber(right_ledger)
  if left_ledger ~= right_ledger then return left_ledger < right_ledger end
  return tonumber(left_entry) <= tonumber(right_entry)
end

-- The answer for a block that can no longer be appended. An earlier attempt of it can only be stored
-- under its own id. Its absence is proof only while the log still begins at or below that id: a
-- successor may have trimmed it.
local function settle(stream, unit, is_owner, block)
  local found = redis.pcall('XRANGE', stream, block.id, block.id)
  if broken(stream, found) then return broken(stream, found) end
  if found[1] then
    local fields = found[1][2]
    for i = 1, #fields, 2 do
      if fields[i] == 'h' and fields[i + 1] == block.chain then
        if not is_owner then return 'UNKNOWN' end
        -- WAIT waits for the last write of this connection, so the script writes at least once.
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
  local fields = { 'n', block.lengths, 'p', block.payload, 't', block.time, 'h', block.chain }
  local function add(name, value)
    fields[#fields + 1], fields[#fields + 2] = name, value
  end
  if block.counts ~= '' then add('c', block.counts) end
  if block.publish then add('x', block.publish.name) end
  if block.publish and block.publish.commits then add('xc', '1') end
  if block.publish and block.publish.by ~= '' then add('by', block.publish.by) end
  local added = redis.pcall('XADD', stream, 'NOMKSTREAM', block.id, unpack(fields))
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

local function next_publish()
  local app = next_argument()
  if app == '' then return nil end
  local version, opens, commits = next_argument(), next_argument(), next_argument() == '1'
  return {
    name = app .. '/' .. version, field = 'txn:' .. app, version = version, opens = opens,
    commits = commits, owner_field = 'publisher:' .. app, owner = next_argument(),
    by = next_argument(),
  }
end

-- The first block of a publish opens it: `opens` is the ledger and the entry of each of its blocks. The last
-- one commits it. `owner` is the subject to which the app is bound with it; '': the app is bound to no
-- subject, and published whatever subject it is bound to. `by` names the publisher; '': it is not proven.
local function next_block(state, unit)
  return {
    id = next_argument(), never_sent = next_argument() == '1', lengths = next_argument(),
    payload = next_argument(), time = next_argument(), chain = next_argument(),
    counts = next_argument(), guard = next_guard(state, unit), publish = next_publish(),
  }
end

local function raise_floor(guard)
  if guard and guard.raises then
    redis.call('HSET', guard.key, guard.field, guard.number)
  end
end
