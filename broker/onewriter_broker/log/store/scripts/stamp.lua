-- Make a bucket's record name the owner that the anchor chose.
--
-- KEYS  unit
-- ARGV  replid generation owner version birthmark (empty: none) format
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: within one dataset the pair (generation, version) never decreases. The version alone may,
-- if a forced adoption binds the dataset to another anchor. Runs only after the anchor's
-- compare-and-set: written earlier, a stale branch could look adoptable. A bucket that has no record
-- here gets one only where the birthmark still stands that was seen before the compare-and-set.
-- Otherwise the dataset was emptied, and a late stamp must not create the record again. The record
-- takes the birthmark's place.

local replid, generation, owner, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if dataset_here() ~= replid then return 'REFENCE' end
local record = redis.pcall('HMGET', KEYS[1], 'gen', 'owner', 'version', 'born')
if broken(KEYS[1], record) then return broken(KEYS[1], record) end
if not record[1] and (ARGV[5] == '' or record[4] ~= ARGV[5]) then return 'LOST' end
if record[1] and not tonumber(record[1]) then return not_a_number(KEYS[1], 'gen') end
if record[3] and not tonumber(record[3]) then return not_a_number(KEYS[1], 'version') end
if record[1] and tonumber(record[1]) > tonumber(generation) then return 'REFENCE' end
if record[3] and tonumber(record[1]) == tonumber(generation) then
  if tonumber(record[3]) > tonumber(version) then return 'FENCED' end
  if tonumber(record[3]) == tonumber(version) and record[2] ~= owner then return 'FENCED' end
end
redis.call('HSET', KEYS[1], 'gen', generation, 'owner', owner, 'version', version,
  'format', ARGV[6])
if record[4] then redis.call('HDEL', KEYS[1], 'born') end
return 'OK'
