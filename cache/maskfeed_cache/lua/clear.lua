-- Begin a new generation in every layer.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua
-- Returns: {fence}
--
-- Atomic: the generation and the counts change in one step; no commit lies between. O(1): records of the generation
-- that ends are stale from here on, and `sweep` collects them.

begin()
write_at_limit()
state.generation = text(call('HINCRBY', STATE, 'generation', 1))
for _, layer in ipairs(LAYERS) do
    add(layer, 'orphaned', figure(layer, 'pinned'))
    call('HSET', STATE, layer .. ':pinned', 0, layer .. ':entries', 0, layer .. ':bytes', 0)
end
call('HSET', STATE, 'cleared', text(now), 'clock', text(now))
tell('kind', 'cleared', 'fence', fence())
return {fence()}
