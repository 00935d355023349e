-- Prove that the calling owner serves a log, and return its epoch and its leader.
--
-- KEYS  unit state
-- ARGV  replid generation owner version token mark (1|0)
-- Reply {epoch leads} | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: the script returns numbers only while the binding holds and the log has the owner's token: at that
-- moment no other broker has opened a ledger of this log in this dataset. With `mark` the script writes,
-- so that WAIT waits for a write of this connection.

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
refused = token_refusal(KEYS[2], ARGV[5])
if refused then return refused end
local held = redis.call('HMGET', KEYS[2], 'epoch', 'leads')
for i, name in ipairs({ 'epoch', 'leads' }) do
  if held[i] and not tonumber(held[i]) then return not_a_number(KEYS[2], name) end
end
if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'beat', 'check') end
return { held[1] or '0', held[2] or '0' }
