-- Let a name stand for nothing, and remember its generation.
--
-- KEYS, all under the tag {names}: 1 names of the tenant (hash), 2 state (hash), 3 deleted (zset), 4 garbage (set)
-- ARGV: 1 "tenant/name", 2 name, 3 generation that the name must have now ('': any), 4 most deleted names to remember
-- Returns: {'deleted', generation} | {'stale', generation now} | {'absent', last generation, 0 if there never was one}
--
-- A record is "<generation> <digest> <count> <size> <list id>".
-- Atomic: the generation is compared, the name removed, the counts changed and the list made garbage in one step. Beyond
-- the limit the deleted name with the lowest generation is forgotten, and `floor` is raised to it: whatever comes back
-- under that name begins above. HDEL comes first, because a full Redis refuses it never, and nothing after it: so a full
-- Redis still takes a deletion.

local member, name, expected = ARGV[1], ARGV[2], ARGV[3]

local function text(number)
    return string.format('%.0f', number)
end

local record = redis.call('HGET', KEYS[1], name)
if not record then
    return {'absent', text(tonumber(redis.call('ZSCORE', KEYS[3], member) or 0))}
end
local generation, size, list_id = string.match(record, '^(%d+) %x+ %d+ (%d+) (%x+)$')
if expected ~= '' and tonumber(expected) ~= tonumber(generation) then
    return {'stale', generation}
end

redis.call('HDEL', KEYS[1], name)
redis.call('HINCRBY', KEYS[2], 'entries', -1)
redis.call('HINCRBY', KEYS[2], 'bytes', '-' .. size)
redis.call('SADD', KEYS[4], list_id)
redis.call('ZADD', KEYS[3], generation, member)
if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[4]) then
    local forgotten = tonumber(redis.call('ZPOPMIN', KEYS[3])[2])
    if forgotten > tonumber(redis.call('HGET', KEYS[2], 'floor') or 0) then
        redis.call('HSET', KEYS[2], 'floor', text(forgotten))
    end
end
return {'deleted', generation}
