-- Create a setting of the installation once, and tell which value stands.
--
-- KEYS  settings
-- ARGV  field value
-- Reply the value that stands | BROKEN ...
--
-- Invariant: of several brokers that create the same setting, the first one's value stands for all.
-- Settings are configuration: they are not fenced.

local held = redis.pcall('HGET', KEYS[1], ARGV[1])
if broken(KEYS[1], held) then return broken(KEYS[1], held) end
if held then return held end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]
