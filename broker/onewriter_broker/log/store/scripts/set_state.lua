-- Change fields of a log's state: cursors, snapshots.
--
-- KEYS  unit state
-- ARGV  replid generation owner version token, count of fields and values, those, names to remove
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: a deposed owner's late write changes nothing; there is no id fence on a hash. A floor of
-- guarded writes is raised, never lowered.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
keep_floors(KEYS[2], 7, 6 + tonumber(ARGV[6]))
return change_fields(KEYS[2], 7, 6 + tonumber(ARGV[6])) or 'OK'
