-- Make a bucket's record name the owner that the anchor chose.
--
-- KEYS  unit
-- ARGV  replid generation owner version create (1|0) format
-- Reply OK | REFENCE | FENCED | LOST
--
-- Invariant: (generation, version) of the record never falls inside one dataset; the version alone
-- may, when a forced adoption binds the dataset to another anchor. Runs only after the anchor's
-- compare-and-set: written earlier, a stale branch could look adoptable. Without `create` a bucket
-- that has no record here stays without: it was emptied, and a late stamp must not bring it back.

local replid, generation, owner, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if dataset_here() ~= replid then return 'REFENCE' end
local record = redis.call('HMGET', KEYS[1], 'gen', 'owner', 'version')
if not record[1] and ARGV[5] ~= '1' then return 'LOST' end
if record[1] and tonumber(record[1]) > tonumber(generation) then return 'REFENCE' end
if record[3] and tonumber(record[1]) == tonumber(generation) then
  if tonumber(record[3]) > tonumber(version) then return 'FENCED' end
  if tonumber(record[3]) == tonumber(version) and record[2] ~= owner then return 'FENCED' end
end
redis.call('HSET', KEYS[1], 'gen', generation, 'owner', owner, 'version', version,
  'format', ARGV[6])
return 'OK'
