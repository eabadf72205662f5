-- Give a lease up without a result.
--
-- KEYS: as in ledger.lua, lease and failure included.
-- ARGV: 1-2 as in ledger.lua, 3 layer, 4 key, 5 token, 6 fence
-- Returns: 1, or 0 if there was nothing to give up
--
-- Atomic: compared and ended in one step, so another holder's lease is never ended.

begin()
if fence() ~= ARGV[6] or call('GET', LEASE) ~= ARGV[5] .. '|' .. ARGV[6] then
    return 0
end
call('DEL', LEASE)
tell('kind', 'settled', 'layer', ARGV[3], 'key', ARGV[4])
return 1
