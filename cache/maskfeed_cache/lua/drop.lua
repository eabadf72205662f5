-- Undo a hit whose blob turned out to be gone.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua, 3 layer, 4 key, 5 fence, 6 artifact hash, 7 pin token or ''
-- Returns: 1 if the entry was dropped, 0 if it was another one by then
--
-- Atomic: the artifact hash is compared in the step that drops, so an entry that was committed meanwhile stays.

local layer, key = ARGV[3], ARGV[4]
begin()
write_at_limit()
unpin(ARGV[7], now)
if fence() ~= ARGV[5] then
    return 0
end
add(layer, 'hits', -1)
local record = record_of(layer, key)
if not record or not record.is_live or record.artifact ~= ARGV[6] then
    return 0
end
remove(layer, key, record)
return 1
