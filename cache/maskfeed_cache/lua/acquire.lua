-- The entry of a key, or the right to compute it.
--
-- KEYS: as in ledger.lua, lease and failure included.
-- ARGV: 1-2 as in ledger.lua, 3 layer, 4 key, 5 token, 6 lease_ms, 7 pin token or '', 8 pin's lifetime_ms
-- Returns: {'hit', fence, artifact hash, size} | {'granted', fence} | {'held', fence, remaining_ms} | {'failed', failure}
--
-- Atomic: whether there is an entry, whether there is a lease, and the lease itself are one step, so of any number of
-- callers one is granted. A lease or failure of another fence counts as none.

local layer, key, token, lease_ms = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
begin()
end_of_life()

local record = record_of(layer, key)
if record and record.is_live then
    write_at_limit()
    local used = call('ZSCORE', ORDER[layer], key)
    if not used or tonumber(used) > now - ARGV[2] then
        if used then
            use(layer, key, now)
        end
        add(layer, 'hits', 1)
        pin(ARGV[7], ARGV[8], layer, key, record)
        return {'hit', fence(), record.artifact, record.size}
    end
    -- idle for too long, and more had to be ended than one call may do
    remove(layer, key, record)
    add(layer, 'expirations', 1)
end

local failure = call('GET', FAILURE)
if failure and string.sub(failure, 1, #fence() + 1) == fence() .. '|' then
    return {'failed', string.sub(failure, #fence() + 2)}
end

local mine = token .. '|' .. fence()
local lease = call('GET', LEASE)
if lease and lease ~= mine and string.sub(lease, -#fence() - 1) == '|' .. fence() then
    return {'held', fence(), text(math.max(1, call('PTTL', LEASE)))}
end
call('SET', LEASE, mine, 'PX', lease_ms)
if lease ~= mine then
    add(layer, 'misses', 1)
end
return {'granted', fence()}
