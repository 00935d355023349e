-- Open ledgers for logs of any buckets. Runs after its includes guard.lua and publish.lua.
--
-- KEYS  per bucket: unit audit, then per log of its fences: stream state
-- ARGV  audit_records_max, count of buckets, then
--       per bucket: replid generation owner version, count of fences
--       per fence:  ledger, count of audit fields and values, those, count of logs
--       per log:    create (1|0), count of marker fields and values, those,
--                   count of state fields and values, those
-- Reply one code per fence, in the order of ARGV: OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: the first entry of a ledger is its marker <ledger>-0. After OK, no entry of a lower ledger
-- enters these logs: the marker's id is greater than all of theirs, and append.lua compares the token.
-- A fence opens all its logs or none: everything that it depends on, also the audit's key, is checked
-- before its first write. A fence that is refused changes nothing for the other fences of the call. A log
-- that already has this marker and token is skipped, so a repeated call answers OK and audits once. A fence
-- removes the blocks of an uncommitted atomic publish: no reader has seen them, and nothing commits them later.

local dataset, codes = dataset_here(), {}
local audit_records_max = next_argument()

-- The bucket and the fence that the loop at the end processes.
local unit, audit, generation, owner, known
local ledger, token, marker_id

-- Reads a count and skips that many arguments; their first and last index.
local function next_fields()
  local first, last = at + 1, at + tonumber(ARGV[at])
  at = last + 1
  return first, last
end

local function next_log()
  local log = { stream = next_key(), state = next_key(), create = next_argument() == '1' }
  log.marker_first, log.marker_last = next_fields()
  log.state_first, log.state_last = next_fields()
  return log
end

-- Reads the bucket's highest ledger; nil, or the code to answer for all fences of the bucket.
local function read_bucket()
  known = redis.call('HGET', unit, 'lastLedger')
  if known and not tonumber(known) then return not_a_number(unit, 'lastLedger') end
  known = known and tonumber(known)
  local audited = redis.pcall('XREVRANGE', audit, '+', '-', 'COUNT', 1)
  return broken(audit, audited)
end

-- The log already has ledger `last`: a newer fence opened it, or a program other than a broker wrote it. In
-- the second case no ledger of the bucket might ever be higher.
local function overtaken(where, last)
  if not known or last <= known then return 'FENCED' end
  return 'BROKEN ' .. where .. ': ledger ' .. last .. ' was never opened'
end

local function is_my_marker(stream)
  local found = redis.call('XRANGE', stream, marker_id, marker_id)
  return found[1] ~= nil and value_of(found[1][2], 'owner') == owner
end

-- nil: open this log; 'PRESENT': a former attempt has opened it; otherwise the code to answer.
local function check(log)
  local stream, state = log.stream, log.state
  local exists = redis.call('EXISTS', stream) == 1
  local held = redis.pcall('HMGET', state, 'tok', 'ledger', 'open')
  if broken(state, held) then return broken(state, held) end
  if held[2] and not tonumber(held[2]) then return not_a_number(state, 'ledger') end
  log.open = held[3]
  local hindrance = open_hindrance(stream, state, log.open)
  if hindrance then return hindrance end
  local last = 0
  if exists then
    local info = redis.pcall('XINFO', 'STREAM', stream)
    if broken(stream, info) then return broken(stream, info) end
    last = tonumber(string.match(value_of(info, 'last-generated-id'), '^%d+'))
  end
  if held[1] == token and exists and is_my_marker(stream) then return 'PRESENT' end
  if not log.create and not (exists and held[1]) then return 'LOST' end
  if exists and last >= tonumber(ledger) then return overtaken(stream, last) end
  if held[2] and tonumber(held[2]) >= tonumber(ledger) then
    return overtaken(state, tonumber(held[2]))
  end
  return nil
end

local function open_ledger(log)
  keep_floors(log.state, log.state_first, log.state_last)
  local marker = { 'k', 'marker', 'owner', owner, 'gen', generation }
  if log.open then
    drop_open(log.stream, log.state, log.open)
    marker[7], marker[8] = 'aborted', string.match(log.open, '^%S+')
  end
  for i = log.marker_first, log.marker_last do marker[#marker + 1] = ARGV[i] end
  redis.call('XADD', log.stream, marker_id, unpack(marker))
  set_fields(log.state, log.state_first, log.state_last)
  redis.call('HSET', log.state, 'tok', token, 'ledger', ledger)
end

-- Opens the logs of one fence, all or none; the code to answer.
local function fence(logs, audit_first, audit_last)
  local missing = {}
  for _, log in ipairs(logs) do
    local code = check(log)
    if code and code ~= 'PRESENT' then return code end
    if not code then missing[#missing + 1] = log end
  end
  if #missing == 0 then
    -- WAIT waits for the last write of this connection, so the script writes at least once.
    redis.call('HSET', unit, 'beat', marker_id)
    return 'OK'
  end
  for _, log in ipairs(missing) do open_ledger(log) end
  if not known or known < tonumber(ledger) then
    redis.call('HSET', unit, 'lastLedger', ledger)
    known = tonumber(ledger)
  end
  if audit_last >= audit_first then
    redis.call('XADD', audit, 'MAXLEN', '~', audit_records_max, '*', unpack(ARGV, audit_first, audit_last))
  end
  return 'OK'
end

for _ = 1, tonumber(next_argument()) do
  local replid, version
  unit, audit = next_key(), next_key()
  replid, generation, owner, version = next_argument(), next_argument(), next_argument(), next_argument()
  local refused = binding_refusal(unit, dataset, replid, generation, owner, version) or read_bucket()
  for _ = 1, tonumber(next_argument()) do
    ledger = next_argument()
    token, marker_id = ledger .. ':' .. owner, ledger .. '-0'
    local audit_first, audit_last = next_fields()
    local logs = {}
    for n = 1, tonumber(next_argument()) do logs[n] = next_log() end
    codes[#codes + 1] = refused or fence(logs, audit_first, audit_last)
  end
end
return codes
