-- Drop a log's oldest blocks and change fields of its state in the same step.
--
-- KEYS  unit stream state
-- ARGV  replid generation owner version token before blocks_max,
--       count of fields and values, those, names to remove
-- Reply OK | REFENCE | FENCED | LOST | BROKEN ...
--
-- Invariant: the block that holds position `before`, the current ledger's marker and all behind
-- them stay, and a deposed owner's late trim changes nothing. One call drops at most about `blocks_max`
-- blocks. The recorded end of the trim never decreases.

local function is_below(position, other)
  local ledger, entry = string.match(position, '^(%d+)-(%d+)$')
  local other_ledger, other_entry = string.match(other, '^(%d+)-(%d+)$')
  if not ledger or not other_ledger then return false end
  if ledger ~= other_ledger then return tonumber(ledger) < tonumber(other_ledger) end
  return tonumber(entry) < tonumber(other_entry)
end

-- A late call, after one that trimmed more, keeps what that call recorded.
local function keep_cut(key, first, last)
  local held = redis.call('HMGET', key, 'trimmed', 'ledgerEnds')
  for i = first, last, 2 do
    if held[1] and ARGV[i] == 'trimmed' and is_below(ARGV[i + 1], held[1]) then
      for k = first, last, 2 do
        if ARGV[k] == 'trimmed' then ARGV[k + 1] = held[1] end
        if ARGV[k] == 'ledgerEnds' and held[2] then ARGV[k + 1] = held[2] end
      end
      return
    end
  end
end

local refused = binding_refusal(KEYS[1], dataset_here(), ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local stream, token, before = KEYS[2], ARGV[5], ARGV[6]
refused = token_refusal(KEYS[3], token)
if redis.call('EXISTS', stream) == 0 then refused = 'LOST' end
if refused then return refused end

local ledger = string.match(token, '^%d+')
if tonumber(string.match(before, '^%d+')) >= tonumber(ledger) then before = ledger .. '-0' end
local holding = redis.pcall('XREVRANGE', stream, before, '-', 'COUNT', 1)
if broken(stream, holding) then return broken(stream, holding) end
if holding[1] then
  local dropped = redis.call('XTRIM', stream, 'MINID', '~', holding[1][1], 'LIMIT', ARGV[7])
  if dropped < tonumber(ARGV[7]) then
    -- All that is left to drop lies in the one node that holds the cut: cheap, and exact.
    redis.call('XTRIM', stream, 'MINID', '=', holding[1][1])
  end
end
keep_cut(KEYS[3], 9, 8 + tonumber(ARGV[8]))
return change_fields(KEYS[3], 9, 8 + tonumber(ARGV[8])) or 'OK'
