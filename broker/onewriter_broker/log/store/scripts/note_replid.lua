-- Note a registration of the dataset in a bucket's record, before the anchor records it.
--
-- KEYS  unit
-- ARGV  replid, the generation that was observed (0: no record), the generation that is about to be registered,
--       1 if the dataset is not the newest one (0: it is)
-- Reply OK | REFENCE | BROKEN ...
--
-- Invariant: the note names a replid that this dataset had when the note was written. The server forgets a former
-- replid when it restarts, and when its first replica connects. With the note a dataset that was registered and that
-- changed its replid before the stamp is still recognised. The note counts for one registration only: a copy from
-- before a later registration of the same replid has the note of the earlier one. A late call changes no dataset that
-- has another replid, and no record with another generation. A call that observed no record also passes in a dataset
-- that was stamped and emptied since. If its bucket was in use, brokers refuse it whatever its note. That entries may be
-- missing is noted before the anchor forgets it, so that a broker that dies in between does not hide it.

local replid, generation, registered = ARGV[1], ARGV[2], ARGV[3]
if dataset_here() ~= replid then return 'REFENCE' end
local held = redis.pcall('HGET', KEYS[1], 'gen')
if broken(KEYS[1], held) then return broken(KEYS[1], held) end
if (held or '0') ~= generation then return 'REFENCE' end
redis.call('HSET', KEYS[1], 'replid', replid .. '/' .. registered)
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'lacks', registered) end
return 'OK'
