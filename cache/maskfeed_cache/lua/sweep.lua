-- Name artifacts whose blobs may be deleted.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua, 3 grace, microseconds: younger garbage is left for later
-- Returns: {'done' or 'again', moment, artifact hash...}
--          'again': there is more than one call may look at; the moment is for forget.lua
--
-- Atomic: an artifact that is named here has no reference in this step. Its blob lies under another hash tag and is
-- deleted by delete_blob.lua, which leaves it if somebody has stored it of late: a commit may be on its way.

begin()
write_at_limit()
local is_done = end_of_life()
for _, layer in ipairs(LAYERS) do
    local stale = call('ZRANGEBYSCORE', ORDER[layer], '-inf', state.cleared, 'LIMIT', 0, BUDGET)
    for _, key in ipairs(stale) do
        remove(layer, key, record_of(layer, key))
    end
    is_done = is_done and #stale < BUDGET
end
local garbage = call('ZRANGEBYSCORE', GARBAGE, '-inf', text(now - ARGV[3]), 'LIMIT', 0, BUDGET)
local answer = {(is_done and #garbage < BUDGET) and 'done' or 'again', text(now)}
for _, artifact in ipairs(garbage) do
    if call('HEXISTS', REFERENCES, artifact) == 1 then
        call('ZREM', GARBAGE, artifact)
    else
        call('ZADD', GARBAGE, text(now), artifact)
        answer[#answer + 1] = artifact
    end
end
return answer
