-- Strike artifacts off the garbage: their blobs are gone.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua, 3 moment as sweep.lua gave it, 4... artifact hashes
-- Returns: how many were struck off
--
-- Atomic: one that has become garbage anew since then has another moment and stays.

begin()
local n = 0
for i = 4, #ARGV do
    local since = call('ZSCORE', GARBAGE, ARGV[i])
    if since and text(since) == ARGV[3] then
        n = n + call('ZREM', GARBAGE, ARGV[i])
    end
end
return n
