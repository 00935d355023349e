-- Change one field of a log's state if it has the expected value.
--
-- KEYS  unit state
-- ARGV  replid generation owner version token field, is the field expected (1|0), expected value,
--       is it set (1|0, then it is removed), new value
-- Reply OK | STALE | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: a call that the server executes after a later one changes nothing. A repeated call answers OK.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
local field = ARGV[6]
local expected = ARGV[7] == '1' and ARGV[8]
local desired = ARGV[9] == '1' and ARGV[10]
local held = redis.call('HGET', KEYS[2], field)
if held == desired then return 'OK' end
if held ~= expected then return 'STALE' end
if desired then redis.call('HSET', KEYS[2], field, desired) else redis.call('HDEL', KEYS[2], field) end
return 'OK'
