-- Add one record to a bucket's audit stream.
--
-- KEYS  unit audit
-- ARGV  replid generation owner records_max, fields and values
-- Reply OK | REFENCE | FENCED | LOST
--
-- Invariant: only the bucket's owner testifies in it.

local refused = refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', unpack(ARGV, 5))
return 'OK'
