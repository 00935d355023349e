-- Set records of ownerships: all of them, or none.
--
-- KEYS  unit own owners audit
-- ARGV  replid generation owner version ledger (0: none) audit_records_max, count of records,
--       per record: name generation owner_json,
--       then per audit record: count of fields and values, those
--       without records: nothing more, or 'settle'
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: a record's generation never falls, and only the bucket's owner changes it. `own` contains the
-- generations as plain numbers, so that other scripts can compare them; `owners` contains the owners. If all
-- records are stored already, the script writes no audit record, so a repeated call audits once. A call
-- without records proves that the caller owns the bucket. With `settle` it also records that from this
-- registration on the records contain every grant; only then do they guard writes.

local generation = ARGV[2]
local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], generation, ARGV[3], ARGV[4])
if refused then return refused end
local ledger, count = tonumber(ARGV[5]), tonumber(ARGV[7])
if count == 0 then
  if ARGV[8] == 'settle' then redis.call('HSET', KEYS[1], 'owned', generation) end
  return 'OK'
end

local known = redis.call('HGET', KEYS[1], 'lastLedger')
if known and not tonumber(known) then return not_a_number(KEYS[1], 'lastLedger') end
local audited = redis.pcall('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
if broken(KEYS[4], audited) then return broken(KEYS[4], audited) end

local all_stored = true
for at = 8, 7 + 3 * count, 3 do
  local held = redis.pcall('HGET', KEYS[2], ARGV[at])
  if broken(KEYS[2], held) then return broken(KEYS[2], held) end
  local owner = redis.pcall('HGET', KEYS[3], ARGV[at])
  if broken(KEYS[3], owner) then return broken(KEYS[3], owner) end
  if held and not tonumber(held) then return not_a_number(KEYS[2], ARGV[at]) end
  if held and tonumber(held) > tonumber(ARGV[at + 1]) then
    return 'BROKEN ' .. KEYS[2] .. ': generation ' .. held .. ' of ' .. ARGV[at]
      .. ' was never granted'
  end
  all_stored = all_stored and held == ARGV[at + 1] and owner == ARGV[at + 2]
end

for at = 8, 7 + 3 * count, 3 do
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 2])
end
if ledger > 0 and (not known or tonumber(known) < ledger) then
  redis.call('HSET', KEYS[1], 'lastLedger', ARGV[5])
end
local at = 8 + 3 * count
while not all_stored and at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], '*', unpack(ARGV, at + 1, last))
  at = last + 1
end
return 'OK'
