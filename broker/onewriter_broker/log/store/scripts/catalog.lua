-- Change a bucket's catalog of topics.
--
-- KEYS  unit topics
-- ARGV  replid generation owner version, count of fields and values, those, names to remove
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: only the bucket's owner declares topics new or gone.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
return change_fields(KEYS[2], 6, 5 + tonumber(ARGV[5])) or 'OK'
