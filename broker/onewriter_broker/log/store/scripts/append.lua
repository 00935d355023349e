-- Append blocks to logs of any buckets. Runs after its includes guard.lua, publish.lua and blocks.lua.
--
-- KEYS  per bucket: unit, then per log of the bucket: stream state, then the hash that each of its
--       blocks names by a guard of kind epoch or ownership
-- ARGV  count of buckets, then
--       per bucket: replid generation owner version, count of logs
--       per log:    token, count of blocks
--       per block:  id never_sent (1|0) lengths payload time chain counts ('' = one message each)
--                   guard: '' | epoch|ownership|floor field number
--                   publish: '' | app version opens commits (1|0) owner ('' = none)
--                   by ('' = not proven)
-- Reply one code per block, in the order of ARGV:
--       OK | REFENCE | FENCED | LOST | UNKNOWN | STALE | AHEAD | HELD | BROKEN ...
--
-- Invariant: a block enters its log only after the marker of its own ledger, only from the owner that
-- the log's token names, at most once, and only while its guard holds. After a rejected block, this call
-- appends no later block of the same log. The blocks of an atomic publish are consecutive in one ledger;
-- the append of the last one, and no other, records the version of the app.
--
-- FENCED: the block is certainly not in the log. STALE, AHEAD (by its guard or its version) and HELD
-- (after such a block) mean the same. They are answered only for a block that was never sent before:
-- no copy of it is under way, so its id is free again. A block that was sent before is looked for; if
-- it is not found, the answer is REFENCE: its absence is certain only after the next ledger's marker.
-- BROKEN says nothing about earlier attempts, and concerns only the logs of that key.

local dataset = dataset_here()
local codes = {}

-- Appends a block if its guard holds, and leaves the guard's number as the floor for later writers.
-- Returns the answer, and the publish that is open then.
local function append_guarded(stream, state, open, unit, generation, block)
  local guard = block.guard
  local refused = publish_refusal(state, open, block.publish)
    or guard and guard_refusal(guard, generation)
  if not refused then
    local answer = append(stream, block)
    if answer ~= 'OK' then return answer, open end
    raise_floor(guard)
    return answer, note_publish(state, open, block.publish)
  end
  if block.never_sent then return refused, open end
  local settled = settle(stream, unit, true, block)
  if settled == 'FENCED' or settled == 'UNKNOWN' then return 'REFENCE', open end
  return settled, open
end

for _ = 1, tonumber(next_argument()) do
  local unit = next_key()
  local replid, generation = next_argument(), next_argument()
  local owner, version = next_argument(), next_argument()
  local refused = binding_refusal(unit, dataset, replid, generation, owner, version)
  for _ = 1, tonumber(next_argument()) do
    local stream, state, token = next_key(), next_key(), next_argument()
    local code = refused or token_refusal(state, token)
    local open = not code and open_publish(state) or nil
    for _ = 1, tonumber(next_argument()) do
      local block = next_block(state, unit)
      if code == 'HELD' and not block.never_sent then code = 'REFENCE' end
      local answer = code
      if not code then
        answer, open = append_guarded(stream, state, open, unit, generation, block)
        if answer ~= 'OK' and answer ~= 'PRESENT' then code = answer end
        if answer == 'STALE' or answer == 'AHEAD' then code = 'HELD' end
      end
      if answer == 'PRESENT' or answer == 'FENCED' then
        answer = settle(stream, unit, refused == nil, block)
        if answer == 'FENCED' or answer == 'UNKNOWN' then code = 'FENCED' end
        if string.sub(answer, 1, 6) == 'BROKEN' then code = answer end
      end
      codes[#codes + 1] = answer
    end
  end
end
return codes
