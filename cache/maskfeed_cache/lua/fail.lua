-- End a lease with a failure that lies in the key, and remember it for a while.
--
-- KEYS: as in ledger.lua, lease and failure included.
-- ARGV: 1-2 as in ledger.lua, 3 layer, 4 key, 5 token, 6 fence, 7 failure, 8 remember_ms
-- Returns: 1, or 0 if the lease is lost or its generation is over
--
-- Atomic: compared, remembered and ended in one step. The failure carries its fence, so a clear forgets it.

begin()
if fence() ~= ARGV[6] or call('GET', LEASE) ~= ARGV[5] .. '|' .. ARGV[6] then
    return 0
end
call('DEL', LEASE)
call('SET', FAILURE, fence() .. '|' .. ARGV[7], 'PX', ARGV[8])
tell('kind', 'settled', 'layer', ARGV[3], 'key', ARGV[4])
return 1
