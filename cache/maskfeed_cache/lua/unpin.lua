-- Give pins back.
--
-- KEYS: as in ledger.lua.
-- ARGV: 1-2 as in ledger.lua, 3... pin tokens; the caller bounds their number
-- Returns: how many of them were pins
--
-- Atomic: a pin, the count of its item and the bytes that it held change in one step.

begin()
local n = 0
for i = 3, #ARGV do
    if call('HEXISTS', PINS, ARGV[i]) == 1 then
        unpin(ARGV[i], now)
        n = n + 1
    end
end
return n
