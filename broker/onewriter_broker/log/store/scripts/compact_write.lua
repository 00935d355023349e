-- Add one block to the view that an attempt at compaction writes.
--
-- KEYS  unit state slot
-- ARGV  replid generation owner version token attempt, the block's number, head, payload
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: only the present attempt writes, only the log's owner has one, never to the slot that
-- readers see, and each block once, in order.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
local held = redis.call('HMGET', KEYS[2], 'compacting', 'compacted')
if held[1] ~= ARGV[6] then return 'FENCED' end
if held[2] and string.match(held[2], '^%d+') == string.match(ARGV[6], '^%d+') then return 'FENCED' end
local blocks = redis.pcall('HGET', KEYS[3], 'n')
if broken(KEYS[3], blocks) then return broken(KEYS[3], blocks) end
if (blocks or '0') ~= ARGV[7] then return 'FENCED' end
redis.call('HSET', KEYS[3], 'm' .. ARGV[7], ARGV[8], 'p' .. ARGV[7], ARGV[9],
  'n', string.format('%d', tonumber(ARGV[7]) + 1))
return 'OK'
