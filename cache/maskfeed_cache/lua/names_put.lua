-- Let a name stand for a list that is in the store already, under its next generation.
--
-- KEYS, all under the tag {names}: 1 names of the tenant (hash: name -> record), 2 state (hash: entries, bytes, floor),
--       3 deleted (zset: "tenant/name" by last generation), 4 reserved (zset), 5 garbage (set)
-- ARGV: 1 "tenant/name", 2 name, 3 digest, 4 count, 5 size, 6 list id, 7 generation that the name must have now (0: none,
--       '': any), 8 limit of bytes, 9 limit of names
-- Returns: {'put', generation, 1 if the name is new else 0} | {'stale', generation now, 0 for none}
--          | {'lost'}: the reservation is gone | {'full', 'bytes' or 'names', how many there would be}
--
-- A record is "<generation> <digest> <count> <size> <list id>".
-- Atomic: the generation is compared, the name moved, the counts changed and the old list made garbage in one step. Of
-- two writers that expect the same generation one is stale. The list of a refused one is garbage at once. A name that
-- comes back goes on after its last generation, or after `floor`, which is above that of every name that was forgotten.
-- A list that takes no more than the one it replaces is never refused for want of room. All checks stand before HSET,
-- the first write that a full Redis refuses; after it Redis refuses none. Generations and counts stay below 2^53.

local member, name, size, list_id, expected = ARGV[1], ARGV[2], tonumber(ARGV[5]), ARGV[6], ARGV[7]

local function text(number)
    return string.format('%.0f', number)
end

if not redis.call('ZSCORE', KEYS[4], list_id) then
    return {'lost'}
end

local function refuse(...)
    redis.call('ZREM', KEYS[4], list_id)
    redis.call('SADD', KEYS[5], list_id)
    return {...}
end

local record = redis.call('HGET', KEYS[1], name)
local generation, old_size, old_list = 0, 0, nil
if record then
    local first, third, last = string.match(record, '^(%d+) %x+ %d+ (%d+) (%x+)$')
    generation, old_size, old_list = tonumber(first), tonumber(third), last
end
if expected ~= '' and tonumber(expected) ~= generation then
    return refuse('stale', text(generation))
end

local state = redis.call('HMGET', KEYS[2], 'entries', 'bytes', 'floor')
local entries = tonumber(state[1] or 0) + (record and 0 or 1)
local bytes = tonumber(state[2] or 0) + size - old_size
if size > old_size and bytes > tonumber(ARGV[8]) then
    return refuse('full', 'bytes', text(bytes))
end
if not record and entries > tonumber(ARGV[9]) then
    return refuse('full', 'names', text(entries))
end

local last = record and generation or redis.call('ZSCORE', KEYS[3], member) or state[3] or 0
generation = text(tonumber(last) + 1)
redis.call('HSET', KEYS[1], name, table.concat({generation, ARGV[3], ARGV[4], text(size), list_id}, ' '))
redis.call('HSET', KEYS[2], 'entries', text(entries), 'bytes', text(bytes))
redis.call('ZREM', KEYS[3], member)
redis.call('ZREM', KEYS[4], list_id)
if old_list then
    redis.call('SADD', KEYS[5], old_list)
end
return {'put', generation, record and 0 or 1}
