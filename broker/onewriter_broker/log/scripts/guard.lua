-- Put in front of every other script of this folder; it is no script of its own.
--
-- Invariant: a binding may write only to the dataset it was made for, while the bucket's record
-- names this very binding: owner and version, so that an owner which lost the bucket and took it
-- again cannot be spoken for by what it sent the first time; and not after a newer registration of
-- the dataset. One call reads the dataset's identity once, so no part of the call can see another
-- dataset than the rest.

local function dataset_here()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
end

-- nil when the binding holds, otherwise the code to answer.
local function refusal(unit, dataset, replid, generation, owner, version)
  if dataset ~= replid then return 'REFENCE' end
  local record = redis.call('HMGET', unit, 'gen', 'owner', 'version')
  if not record[1] or not record[2] then return 'LOST' end
  if tonumber(record[1]) > tonumber(generation) then return 'REFENCE' end
  if record[2] ~= owner then return 'FENCED' end
  if record[3] ~= version then return 'REFENCE' end
  return nil
end

-- Sets ARGV[first..last] (name, value, ...) and removes the fields named by ARGV[last+1..].
local function change_fields(key, first, last)
  if last >= first then redis.call('HSET', key, unpack(ARGV, first, last)) end
  if #ARGV > last then redis.call('HDEL', key, unpack(ARGV, last + 1)) end
end
