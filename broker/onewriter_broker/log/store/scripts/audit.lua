-- Add one record to a bucket's audit stream.
--
-- KEYS  unit audit
-- ARGV  replid generation owner version records_max, fields and values
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: only the bucket's owner testifies in it.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', unpack(ARGV, 6))
return broken(KEYS[2], added) or 'OK'
