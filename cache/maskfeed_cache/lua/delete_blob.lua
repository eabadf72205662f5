-- Delete the blob of an artifact that is garbage, unless somebody has stored or asked for it of late.
--
-- KEYS: 1 blob, under its own hash tag
-- ARGV: 1 blob_ttl_ms, the life that storing and asking give it, 2 grace_ms
-- Returns: 1 if it was deleted, 0 if there is none, -1 if it stays
--
-- Atomic: its last use, read from the life that it has left, and the deletion are one step. Only durations are compared,
-- so the clocks of a cluster's servers don't matter. Who commits within the grace of having stored finds it there.

local left_ms = redis.call('PTTL', KEYS[1])
if left_ms >= 0 and ARGV[1] - left_ms < tonumber(ARGV[2]) then
    return -1
end
return redis.call('UNLINK', KEYS[1])
