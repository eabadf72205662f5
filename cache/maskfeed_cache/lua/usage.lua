-- Figures of all layers.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua
-- Returns: {'done' or 'again', fence, then per layer: name, entries, bytes, orphaned, hits, misses, evictions, expirations}
--          'again': more has expired than one call may end; call again
--
-- Atomic: all figures are of one moment.

begin()
write_at_limit()
local answer = {end_of_life() and 'done' or 'again', fence()}
for _, layer in ipairs(LAYERS) do
    answer[#answer + 1] = layer
    for _, name in ipairs(FIGURES) do
        if name ~= 'pinned' then
            answer[#answer + 1] = state[layer .. ':' .. name]
        end
    end
end
return answer
