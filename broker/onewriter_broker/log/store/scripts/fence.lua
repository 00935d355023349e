-- Open a ledger for a group of logs: all of them, or none.
--
-- KEYS  unit audit, then per log: stream state
-- ARGV  replid generation owner version ledger audit_records_max,
--       count of audit fields and values, those,
--       then per log: create (1|0), count of marker fields and values, those,
--                     count of state fields and values, those
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: the first entry of a ledger is its marker <ledger>-0, and from OK on no entry of a
-- lower ledger enters these logs. What was open of an atomic publish is gone with it: it never counted
-- and was never readable, and what nobody committed by now nobody will. Everything is checked before the first write, the audit's key
-- too. A log that already carries this very marker and token is skipped, so a repeated call answers
-- OK and audits once.

local replid, generation, owner, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local refused = refusal(KEYS[1], dataset_here(), replid, generation, owner, version)
if refused then return refused end

local ledger = ARGV[5]
local token = ledger .. ':' .. owner
local marker_id = ledger .. '-0'

local function last_ledger(info)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return tonumber(string.match(info[i + 1], '^%d+')) end
  end
end

local known = redis.call('HGET', KEYS[1], 'lastLedger')
if known and not tonumber(known) then return not_a_number(KEYS[1], 'lastLedger') end
known = known and tonumber(known)
local audited = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if broken(KEYS[2], audited) then return broken(KEYS[2], audited) end

-- The log is at `last` already: by a newer fence; or by somebody's own write, and then no ledger to
-- come might ever lie above it.
local function overtaken(key, last)
  if not known or last <= known then return 'FENCED' end
  return 'BROKEN ' .. key .. ': ledger ' .. last .. ' was never opened'
end

-- In parts: Lua's stack holds about 8000 words, and a log's whole state may be more.
local words_max = 2000

local function set_fields(key, first, last)
  for at = first, last, words_max do
    redis.call('HSET', key, unpack(ARGV, at, math.min(last, at + words_max - 1)))
  end
end

local function is_my_marker(stream)
  local found = redis.call('XRANGE', stream, marker_id, marker_id)
  if not found[1] then return false end
  local fields = found[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == 'owner' then return fields[i + 1] == owner end
  end
  return false
end

-- The blocks of an atomic publish that was not committed, named by whoever appended its first.
local function drop_open(log)
  local ledger, entries = string.match(log.open, '^%S+ (%d+) ([%d ]+)$')
  local ids = {}
  for entry in string.gmatch(entries, '%d+') do
    ids[#ids + 1] = ledger .. '-' .. entry
    if #ids == words_max then
      redis.call('XDEL', log.stream, unpack(ids))
      ids = {}
    end
  end
  if #ids > 0 then redis.call('XDEL', log.stream, unpack(ids)) end
  redis.call('HDEL', log.state, 'open')
end

local audit_first = 8
local at = audit_first + tonumber(ARGV[7])
local audit_last = at - 1
local missing = {}
for k = 3, #KEYS, 2 do
  local stream, state = KEYS[k], KEYS[k + 1]
  local log = { stream = stream, state = state, create = ARGV[at] == '1' }
  log.marker_first = at + 2
  log.marker_last = at + 1 + tonumber(ARGV[at + 1])
  at = log.marker_last + 1
  log.state_first = at + 1
  log.state_last = at + tonumber(ARGV[at])
  at = log.state_last + 1

  local exists = redis.call('EXISTS', stream) == 1
  local held = redis.pcall('HMGET', state, 'tok', 'ledger', 'open')
  if broken(state, held) then return broken(state, held) end
  if held[2] and not tonumber(held[2]) then return not_a_number(state, 'ledger') end
  log.open = held[3]
  if log.open and not string.match(log.open, '^%S+ %d+ [%d ]+$') then
    return 'BROKEN ' .. state .. ': open names no blocks'
  end
  -- May it be dropped? Who may not learns it before the first write.
  if log.open then redis.call('XDEL', stream, '0-1') end
  local last = 0
  if exists then
    local info = redis.pcall('XINFO', 'STREAM', stream)
    if broken(stream, info) then return broken(stream, info) end
    last = last_ledger(info)
  end
  if not (held[1] == token and exists and is_my_marker(stream)) then
    if not log.create and not (exists and held[1]) then return 'LOST' end
    if exists and last >= tonumber(ledger) then return overtaken(stream, last) end
    if held[2] and tonumber(held[2]) >= tonumber(ledger) then
      return overtaken(state, tonumber(held[2]))
    end
    missing[#missing + 1] = log
  end
end
if #missing == 0 then
  -- WAIT counts this connection's last write; without one it would vouch for nothing.
  redis.call('HSET', KEYS[1], 'beat', marker_id)
  return 'OK'
end

for _, log in ipairs(missing) do
  keep_floors(log.state, log.state_first, log.state_last)
  local own = { 'k', 'marker', 'owner', owner, 'gen', generation }
  if log.open then
    drop_open(log)
    own[7], own[8] = 'aborted', string.match(log.open, '^%S+')
  end
  for at = log.marker_first, log.marker_last do own[#own + 1] = ARGV[at] end
  redis.call('XADD', log.stream, marker_id, unpack(own))
  set_fields(log.state, log.state_first, log.state_last)
  redis.call('HSET', log.state, 'tok', token, 'ledger', ledger)
end
if not known or known < tonumber(ledger) then
  redis.call('HSET', KEYS[1], 'lastLedger', ledger)
end
if audit_last >= audit_first then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', unpack(ARGV, audit_first, audit_last))
end
return 'OK'
