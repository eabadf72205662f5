-- Announce a list that is about to be written, so that it is found again if its writer dies.
--
-- KEYS: 1 reserved (zset: list id by the moment), 2 garbage (set: list ids); both under the tag {names}
-- ARGV: 1 list id, 2 longest life of a reservation, milliseconds
-- Returns: how many old reservations have become garbage
--
-- Atomic: an id is in one of the two sets or in none, never in both; `names_put` takes it from `reserved` only. So a
-- writer that was too slow finds its reservation gone, and no list that a name stands for is ever garbage. Bounded: at
-- most 16 old reservations a call. Nothing is written before ZADD, the first write that a full Redis refuses.

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now_ms - ARGV[2]), 'LIMIT', 0, 16)
for _, list_id in ipairs(old) do
    redis.call('ZREM', KEYS[1], list_id)
    redis.call('SADD', KEYS[2], list_id)
end
return #old
