-- Health of an ExclusiveTopic, a ProducerClaim or a OneWriter for Argo CD, which calls a kind that it does not know
-- Healthy as soon as it exists. How to use it: docs/install.md, "GitOps". It needs no Lua library:
-- Argo CD opens none by default.

local function result(status, message)
  return {status = status, message = message}
end

local on = {["true"] = true, ["True"] = true, ["yes"] = true, ["1"] = true}
local annotations = obj.metadata.annotations or {}
local seen = obj.status or {}

if seen.conditions == nil or #seen.conditions == 0 then
  return result("Progressing", "no operator has looked at it yet")
end

local conditions = {}
for _, condition in ipairs(seen.conditions) do
  conditions[condition.type] = condition
end
local function holds(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

if on[annotations["onewriter.dev/unmanaged"]] then
  return result("Suspended", "unmanaged: the operator leaves it alone")
end
if seen.observedGeneration ~= obj.metadata.generation then
  return result("Progressing", "its newest spec has not been looked at yet")
end
if holds("Stalled") then
  return result("Degraded", conditions.Stalled.reason .. ": " .. conditions.Stalled.message)
end
if on[annotations["onewriter.dev/paused"]] then
  return result("Suspended", "paused: brokers keep the spec that they have")
end

local ready = conditions.Ready
if ready == nil then
  return result("Progressing", "no operator has looked at it yet")
end
local words = ready.reason .. ": " .. ready.message
if ready.status == "True" then
  return result("Healthy", ready.message)
end
-- A status that is unknown or in progress is not a fault.
if ready.status == "Unknown" or holds("Reconciling") then
  return result("Progressing", words)
end
return result("Degraded", words)
