-- Make what an attempt has written the log's compacted view.
--
-- KEYS  unit state slot
-- ARGV  replid generation owner version token attempt, blocks, the view's text
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: readers change from one whole view to the next in one step; a view of which something
-- is missing never counts. Epochs, tokens and markers are not touched.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
if redis.call('HGET', KEYS[2], 'compacting') ~= ARGV[6] then return 'FENCED' end
local blocks = redis.pcall('HGET', KEYS[3], 'n')
if broken(KEYS[3], blocks) then return broken(KEYS[3], blocks) end
if (blocks or '0') ~= ARGV[7] then return 'LOST' end
redis.call('HSET', KEYS[2], 'compacted', ARGV[8])
return 'OK'
