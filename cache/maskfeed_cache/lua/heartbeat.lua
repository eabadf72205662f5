-- Renew a lease.
--
-- KEYS: as in ledger.lua, lease and failure included.
-- ARGV: 1-2 as in ledger.lua, 3 token, 4 fence, 5 lease_ms
-- Returns: 1, or 0 if the lease is lost or its generation is over
--
-- Atomic: compared and renewed in one step, so a lease that somebody else has taken is never prolonged.

begin()
local lease = ARGV[3] .. '|' .. ARGV[4]
if fence() ~= ARGV[4] or call('GET', LEASE) ~= lease then
    return 0
end
return call('PEXPIRE', LEASE, ARGV[5])
