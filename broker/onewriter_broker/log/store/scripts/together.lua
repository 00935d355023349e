-- Append one block each to several logs of one bucket: all of them, or none.
--
-- KEYS  unit, then per block: stream state, and the hash that its guard names (epoch, ownership)
-- ARGV  replid generation owner version, count of blocks, then per block: token, and what append.lua
--       takes per block
-- Reply one code per block, as append.lua's; HELD: this block alone would have been appended.
--
-- Invariant: everything is checked before the first block is written, and what may fail then (a full
-- server, too few replicas) fails at the first write. Redis stores and replicates a script's writes as
-- one transaction, so after any failure all of these blocks are there, or none.

local replid, generation, owner, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local unit = KEYS[1]
local refused = binding_refusal(unit, dataset_here(), replid, generation, owner, version)
key, at = 1, 5

-- The code that prevents the append of all blocks; nil if this block does not.
local function hindrance(stream, state, token, block)
  local code = refused or token_refusal(state, token)
  if code then return code end
  if redis.call('EXISTS', stream) == 0 then return 'LOST' end
  local info = redis.pcall('XINFO', 'STREAM', stream)
  if broken(stream, info) then return broken(stream, info) end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' and at_or_below(block.id, info[i + 1]) then return 'PRESENT' end
  end
  return publish_refusal(state, open_publish(state), nil)
    or block.guard and guard_refusal(block.guard, generation)
end

local blocks, is_hindered = {}, false
for n = 1, tonumber(next_argument()) do
  local stream, state, token = next_key(), next_key(), next_argument()
  local block = next_block(state, unit)
  block.stream = stream
  block.code = hindrance(stream, state, token, block)
  is_hindered = is_hindered or block.code
  blocks[n] = block
end

-- The answer for a block if none was appended. An earlier attempt may have stored it.
local function answer_of(block)
  local code = block.code
  if code == 'REFENCE' or code == 'LOST' then return code end
  if code and string.sub(code, 1, 6) == 'BROKEN' then return code end
  local settled = settle(block.stream, unit, refused == nil, block)
  if settled ~= 'FENCED' then return settled end
  if code == 'FENCED' or code == 'PRESENT' then return 'FENCED' end
  if block.never_sent then return code or 'HELD' end
  return 'REFENCE'
end

local codes = {}
for n, block in ipairs(blocks) do
  if is_hindered then
    codes[n] = answer_of(block)
  else
    codes[n] = append(block.stream, block)
    raise_floor(block.guard)
  end
end
return codes
