-- Drop blocks of a slot that holds no view that counts, the last ones first.
--
-- KEYS  unit state slot
-- ARGV  replid generation owner version token, the slot's number, blocks_max
-- Reply the number of blocks that are left, or REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: the view that the state names stays as it is.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
local counts = redis.call('HGET', KEYS[2], 'compacted')
if counts and string.match(counts, '^%d+') == ARGV[6] then return 'FENCED' end
local held = redis.pcall('HGET', KEYS[3], 'n')
if broken(KEYS[3], held) then return broken(KEYS[3], held) end
local blocks = tonumber(held or '0')
if not blocks then return not_a_number(KEYS[3], 'n') end
local left = math.max(0, blocks - tonumber(ARGV[7]))
for number = left, blocks - 1 do
  local name = string.format('%d', number)
  redis.call('HDEL', KEYS[3], 'm' .. name, 'p' .. name)
end
if left == 0 then
  redis.call('HDEL', KEYS[3], 'n')
else
  redis.call('HSET', KEYS[3], 'n', string.format('%d', left))
end
return left
