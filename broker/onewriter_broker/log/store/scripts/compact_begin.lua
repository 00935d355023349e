-- Let one attempt at compacting a log write to the slot that no reader sees.
--
-- KEYS  unit state
-- ARGV  replid generation owner version token, attempt (its slot's number first)
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: after OK, no write of an earlier attempt is accepted. The slot that readers use accepts no
-- attempt.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
local counts = redis.call('HGET', KEYS[2], 'compacted')
if counts and string.match(counts, '^%d+') == string.match(ARGV[6], '^%d+') then return 'FENCED' end
redis.call('HSET', KEYS[2], 'compacting', ARGV[6])
return 'OK'
