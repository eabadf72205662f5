-- What a name stands for.
--
-- KEYS, all under the tag {names}: 1 names of the tenant (hash), 2 deleted (zset)
-- ARGV: 1 "tenant/name", 2 name
-- Returns: {record, '0'} | {'', last generation, '0' if there never was one}
--
-- Atomic: a name that is deleted, or comes back, between two reads would be taken for one that never was.

local record = redis.call('HGET', KEYS[1], ARGV[2])
if record then
    return {record, '0'}
end
return {'', string.format('%.0f', tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0))}
