-- Drop records of ownerships, and keep the floors above which their resources begin anew.
--
-- KEYS  unit own owners audit
-- ARGV  replid generation owner version audit_records_max, count of floors, per floor: name number,
--       count of floors to remove (others cover them), their names,
--       count of records, per record: name generation,
--       count of the audit record's fields and values, those
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: a floor that stays never falls, and a record goes only in the step that keeps its floor, so
-- a dataset has either of them at every moment. A call that finds nothing to drop audits nothing.

local refused = refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local audited = redis.pcall('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
if broken(KEYS[4], audited) then return broken(KEYS[4], audited) end
local first_floor = 7
local last_floor = 6 + 2 * tonumber(ARGV[6])
local first_gone = last_floor + 2
local last_gone = last_floor + 1 + tonumber(ARGV[last_floor + 1])
local first_record = last_gone + 2
local last_record = last_gone + 1 + 2 * tonumber(ARGV[last_gone + 1])

for at = first_floor, last_floor, 2 do
  local held = redis.pcall('HGET', KEYS[2], ARGV[at])
  if broken(KEYS[2], held) then return broken(KEYS[2], held) end
  if held and not tonumber(held) then return not_a_number(KEYS[2], ARGV[at]) end
  if held and tonumber(held) > tonumber(ARGV[at + 1]) then ARGV[at + 1] = held end
end
local is_there = false
for at = first_record, last_record, 2 do
  local held = redis.pcall('HGET', KEYS[2], ARGV[at])
  if broken(KEYS[2], held) then return broken(KEYS[2], held) end
  local owner = redis.pcall('HGET', KEYS[3], ARGV[at])
  if broken(KEYS[3], owner) then return broken(KEYS[3], owner) end
  if held and not tonumber(held) then return not_a_number(KEYS[2], ARGV[at]) end
  if held and tonumber(held) > tonumber(ARGV[at + 1]) then
    return 'BROKEN ' .. KEYS[2] .. ': generation ' .. held .. ' of ' .. ARGV[at]
      .. ' was never granted'
  end
  is_there = is_there or held or owner
end

for at = first_floor, last_floor, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
for at = first_gone, last_gone do redis.call('HDEL', KEYS[2], ARGV[at]) end
for at = first_record, last_record, 2 do
  redis.call('HDEL', KEYS[2], ARGV[at])
  redis.call('HDEL', KEYS[3], ARGV[at])
end
if is_there then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*', unpack(ARGV, last_record + 2))
end
return 'OK'
