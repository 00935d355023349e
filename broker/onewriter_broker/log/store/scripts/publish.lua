-- Atomic publishes: an include of the scripts that fence or append, after guard.lua; not a script itself.
--
-- The first block of a publish records in the log's state, as `open`, the publish's name, the ledger and
-- the entries of all its blocks. The last block removes `open` and records the version: that commits the
-- publish. While `open` is set, no other block enters the log. A fence removes the named blocks.

-- The publish that is open in a log: its name, or nil. The state is known to be a hash.
local function open_publish(state)
  local open = redis.call('HGET', state, 'open')
  return open and (string.match(open, '^%S+') or open)
end

-- nil when a block may enter as far as atomic publishes are concerned. STALE: this version of the app, or
-- a later one, is published, or the app is bound to another subject. REFENCE: another publish is open,
-- whose blocks may or may not count, or the parts before this one are missing.
local function publish_refusal(state, open, publish)
  if not publish then return open and 'REFENCE' end
  if publish.opens == '' then return open ~= publish.name and 'REFENCE' end
  if open then return 'REFENCE' end
  local held = redis.call('HGET', state, publish.field)
  if held and (tonumber(held) or math.huge) >= tonumber(publish.version) then return 'STALE' end
  local owner = publish.owner ~= '' and redis.call('HGET', state, publish.owner_field)
  if owner and owner ~= publish.owner then return 'STALE' end
  return nil
end

-- Records that a part of a publish was appended; the publish that is open then.
local function note_publish(state, open, publish)
  if not publish then return open end
  if not publish.commits then
    if publish.opens ~= '' then
      redis.call('HSET', state, 'open', publish.name .. ' ' .. publish.opens)
    end
    return publish.name
  end
  redis.call('HSET', state, publish.field, publish.version)
  if publish.owner ~= '' then redis.call('HSET', state, publish.owner_field, publish.owner) end
  if open then redis.call('HDEL', state, 'open') end
  return nil
end

-- nil when a fence can remove what is open, otherwise the code to answer.
local function open_hindrance(stream, state, open)
  if not open then return nil end
  if not string.match(open, '^%S+ %d+ [%d ]+$') then
    return 'BROKEN ' .. state .. ': open names no blocks'
  end
  redis.call('XDEL', stream, '0-1') -- a caller without the right to XDEL fails before the first write
  return nil
end

-- Removes the blocks of the publish that is open, and `open` itself.
local function drop_open(stream, state, open)
  local ledger, entries = string.match(open, '^%S+ (%d+) ([%d ]+)$')
  local ids = {}
  for entry in string.gmatch(entries, '%d+') do
    ids[#ids + 1] = ledger .. '-' .. entry
    if #ids == words_max then
      redis.call('XDEL', stream, unpack(ids))
      ids = {}
    end
  end
  if #ids > 0 then redis.call('XDEL', stream, unpack(ids)) end
  redis.call('HDEL', state, 'open')
end
