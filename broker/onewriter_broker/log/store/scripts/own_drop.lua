-- Drop records of ownerships, and keep floors: later generations of the resources begin above their floor.
--
-- KEYS  unit own owners audit
-- ARGV  replid generation owner version audit_records_max,
--       count of floors to set, per floor: name number,
--       count of floors to remove because another floor covers them, their names,
--       count of records to drop, per record: name, the highest generation that the broker knows,
--       count of the audit record's fields and values, those
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: a floor never falls while it exists. A record and its floor change in one step, so a dataset
-- always has at least one of them. If none of the records exists, the script writes no audit record.

local unit, own, owners, audit = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refused = binding_refusal(unit, dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local audited = redis.pcall('XREVRANGE', audit, '+', '-', 'COUNT', 1)
if broken(audit, audited) then return broken(audit, audited) end

at = 6 -- the count of floors to set

-- Reads a count and skips that many items of `width` arguments; the indexes of their first and last argument.
local function next_items(width)
  local first, last = at + 1, at + width * tonumber(ARGV[at])
  at = last + 1
  return first, last
end

local first_floor, last_floor = next_items(2)
local first_covered, last_covered = next_items(1)
local first_record, last_record = next_items(2)
local first_audit_field = at + 1

for i = first_floor, last_floor, 2 do
  local held = redis.pcall('HGET', own, ARGV[i])
  if broken(own, held) then return broken(own, held) end
  if held and not tonumber(held) then return not_a_number(own, ARGV[i]) end
  if held and tonumber(held) > tonumber(ARGV[i + 1]) then ARGV[i + 1] = held end
end
local any_exists = false
for i = first_record, last_record, 2 do
  local held = redis.pcall('HGET', own, ARGV[i])
  if broken(own, held) then return broken(own, held) end
  local owner = redis.pcall('HGET', owners, ARGV[i])
  if broken(owners, owner) then return broken(owners, owner) end
  if held and not tonumber(held) then return not_a_number(own, ARGV[i]) end
  if held and tonumber(held) > tonumber(ARGV[i + 1]) then
    return 'BROKEN ' .. own .. ': generation ' .. held .. ' of ' .. ARGV[i] .. ' was never granted'
  end
  any_exists = any_exists or held or owner
end

for i = first_floor, last_floor, 2 do redis.call('HSET', own, ARGV[i], ARGV[i + 1]) end
for i = first_covered, last_covered do redis.call('HDEL', own, ARGV[i]) end
for i = first_record, last_record, 2 do
  redis.call('HDEL', own, ARGV[i])
  redis.call('HDEL', owners, ARGV[i])
end
if any_exists then
  redis.call('XADD', audit, 'MAXLEN', '~', ARGV[5], '*', unpack(ARGV, first_audit_field))
end
return 'OK'
