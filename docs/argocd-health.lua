-- Health of a DaemonTask, S3AggregatedRefresh or IMDSPolicy for Argo CD, one script for all three.
-- Installation and the result of each state: docs/gitops.md. It follows kstatus, as Flux and Helm do.
-- Argo CD shows an object that is being deleted as Progressing by itself.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "not looked at yet"}
end
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end
local function holds(kind)
  return found[kind] ~= nil and found[kind].status == "True"
end
if holds("Reconciling") then
  return {status = "Progressing", message = found.Reconciling.message}
end
if holds("Stalled") then
  return {status = "Degraded", message = found.Stalled.message}
end
if found.Ready == nil then
  return {status = "Progressing", message = "not looked at yet"}
end
if not holds("Ready") then
  return {status = "Progressing", message = found.Ready.message}
end
if found.Ready.reason == "Suspended" then
  return {status = "Suspended", message = found.Ready.message}
end
return {status = "Healthy", message = found.Ready.message}
