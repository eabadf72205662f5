-- End a lease with a result.
--
-- KEYS: as in ledger.lua, lease and failure included.
-- ARGV: 1-2 as in ledger.lua, 3 layer, 4 key, 5 token, 6 fence, 7 artifact hash, 8 size, 9 limit or '',
--       10 pin token or '', 11 pin's lifetime_ms
-- Returns: {'indexed'} | {'stale'} | {'lost'} | {'again'}: room was made, but not yet enough; call again
--          | {'large'}: over the limit alone | {'pinned', bytes that can't be evicted, microseconds until a pin ends}
--
-- Atomic: fence and lease are compared, the entry is written and counted, and the lease is ended in one step. No clear,
-- no other commit and no count lies between. A repeated commit finds its own token in the record.

local layer, key, token = ARGV[3], ARGV[4], ARGV[5]
local record = {artifact = ARGV[7], size = ARGV[8]}
local size, limit = tonumber(ARGV[8]), tonumber(ARGV[9])
begin()
local is_settled = end_of_life()

local function refuse(verdict)
    write_at_limit()
    pin(ARGV[10], ARGV[11], layer, key, record)
    discard(record.artifact)
    return {verdict}
end

local function end_lease()
    call('DEL', LEASE)
    tell('kind', 'settled', 'layer', layer, 'key', key)
end

if ARGV[6] ~= fence() then
    return refuse('stale')
end
local before = record_of(layer, key)
if call('GET', LEASE) ~= token .. '|' .. fence() then
    local is_there = before and before.is_live and before.token == token
    if is_there and before.artifact == record.artifact and before.size == record.size then
        pin(ARGV[10], ARGV[11], layer, key, record)
        return {'indexed'}
    end
    return refuse('lost')
end

local is_pinned = call('HEXISTS', PINNED, item_of(layer, key, record)) == 1
if limit then
    if size > limit then
        end_lease()
        discard(record.artifact)
        return {'large'}
    end
    -- if it is pinned already, it is counted among the orphaned ones
    local orphaned = figure(layer, 'orphaned') - (is_pinned and size or 0)
    local immovable = orphaned + figure(layer, 'pinned')
    if immovable + size > limit then
        if not is_settled then
            return {'again'}
        end
        local first = call('ZRANGE', PIN_ENDS, 0, 0, 'WITHSCORES')
        end_lease()
        discard(record.artifact)
        return {'pinned', text(immovable), text(tonumber(first[2]) - now)}
    end
    local oldest = {}
    if orphaned + figure(layer, 'bytes') + size > limit then
        oldest = call('ZRANGEBYSCORE', ORDER[layer], '(' .. state.cleared, '+inf', 'LIMIT', 0, BUDGET)
    end
    for _, candidate in ipairs(oldest) do
        if orphaned + figure(layer, 'bytes') + size > limit then
            remove(layer, candidate, record_of(layer, candidate))
            add(layer, 'evictions', 1)
        end
    end
    if orphaned + figure(layer, 'bytes') + size > limit then
        return {'again'}
    end
end

-- The key has no live record, or nobody would hold its lease; a stale one makes way.
if before then
    remove(layer, key, before)
end
call('HSET', INDEX[layer], key, table.concat({state.generation, record.size, token, record.artifact}, '|'))
reference(record.artifact)
add(layer, 'entries', 1)
add(layer, 'bytes', size)
if is_pinned then
    add(layer, 'orphaned', -size)
    add(layer, 'pinned', size)
else
    use(layer, key, now)
end
pin(ARGV[10], ARGV[11], layer, key, record)
end_lease()
return {'indexed'}
