-- What every script of the cache shares: it stands before each of them and is sent with it.
--
-- KEYS, all under the one hash tag {cache}, the same for every script:
--   1 state        hash    epoch, generation, clock, cleared, news, and <layer>:<figure> for each layer
--   2 news         stream  what has happened, for those who wait
--   3 pins         hash    pin token -> item
--   4 pin_ends     zset    pin token by the end of its life
--   5 pinned       hash    item -> how many pins hold it
--   6 references   hash    artifact hash -> how many index records and pinned items name it
--   7 garbage      zset    artifact hash by the moment in which nothing named it any more
--   8 index, 9 order    of layer "sets":      hash key -> record; zset key by its last use
--   10 index, 11 order  of layer "automata"
--   12 lease, 13 failure of one key, in scripts that are about one key
-- ARGV, the same for every script:
--   1 nonce        the epoch, if none has begun
--   2 entry_ttl    life of an entry that nobody uses, microseconds
--
-- A record is "<generation>|<size>|<token>|<artifact hash>", an item "<layer>|<size>|<artifact hash>|<key>". A record of
-- another generation than the present one is stale: it is no entry, it is in no count, and `sweep` collects it.
--
-- Why it is right:
--   * A script runs alone. What it compares (fence, lease) can't change before it writes, and a figure changes in the
--     same script as what it counts.
--   * `order` holds the records that no pin holds, and only those. A stale one has a score of at most `cleared`, a live
--     one a higher one: time never stands still or goes back here, it is max(server time, clock + 1).
--   * A clear touches no record: pinned bytes become orphaned bytes, the other figures 0, and the generation moves on.
--   * Nothing is written before the first write that Redis may refuse for want of memory; after it Redis refuses none.
--   * Work per script is bounded by BUDGET; what is left over, a later call does.
--   * Integers stay below 2^53 and are written without exponent.

local STATE, NEWS, PINS, PIN_ENDS, PINNED, REFERENCES, GARBAGE = unpack(KEYS, 1, 7)
local INDEX = {sets = KEYS[8], automata = KEYS[10]}
local ORDER = {sets = KEYS[9], automata = KEYS[11]}
local LAYERS = {'sets', 'automata'}
local LEASE, FAILURE = KEYS[12], KEYS[13]
local FIGURES = {'entries', 'bytes', 'pinned', 'orphaned', 'hits', 'misses', 'evictions', 'expirations'}
local BUDGET = 64
local NEWS_KEPT = 10000

local call = redis.call
local state = {}
local now

-- For Redis; the sum makes a number of a string, and 0 of -0.
local function text(number)
    return string.format('%.0f', number + 0)
end

-- The fence as it travels; clients hand it back as they got it.
local function fence()
    return state.epoch .. '|' .. state.generation
end

local function figure(layer, name)
    return tonumber(state[layer .. ':' .. name])
end

local function add(layer, name, amount)
    local field = layer .. ':' .. name
    state[field] = text(call('HINCRBY', STATE, field, text(amount)))
end

-- Read the state, and begin a new epoch if there is none: whatever else is left of an older one goes with it.
local function begin()
    local flat = call('HGETALL', STATE)
    for i = 1, #flat, 2 do
        state[flat[i]] = flat[i + 1]
    end
    local time = call('TIME')
    now = math.max(time[1] * 1000000 + time[2], tonumber(state.clock or '0') + 1)
    if not state.epoch then
        state = {epoch = ARGV[1], generation = '1', cleared = '0', news = '0'}
        for _, layer in ipairs(LAYERS) do
            for _, name in ipairs(FIGURES) do
                state[layer .. ':' .. name] = '0'
            end
        end
        local fields = {}
        for name, value in pairs(state) do
            fields[#fields + 1] = name
            fields[#fields + 1] = value
        end
        call('HSET', STATE, unpack(fields))
        call('UNLINK', NEWS, PINS, PIN_ENDS, PINNED, REFERENCES, GARBAGE)
        call('UNLINK', INDEX.sets, ORDER.sets, INDEX.automata, ORDER.automata)
    end
end

-- A write that Redis does at its memory limit too, as it does HDEL or DEL; what follows it in the same script is then done
-- as well. For what gives memory back, or passes an entry on, and would begin with a write that Redis refuses there.
local function write_at_limit()
    call('ZREM', GARBAGE, '')
end

-- A record that no pin holds was used.
local function use(layer, key, moment)
    call('ZADD', ORDER[layer], text(moment), key)
    call('HSET', STATE, 'clock', text(now))
end

local function tell(...)
    state.news = text(call('HINCRBY', STATE, 'news', 1))
    call('XADD', NEWS, 'MAXLEN', '~', NEWS_KEPT, '*', 'n', state.news, ...)
end

local function reference(artifact)
    call('HINCRBY', REFERENCES, artifact, 1)
end

local function discard(artifact)
    if call('HEXISTS', REFERENCES, artifact) == 0 then
        call('ZADD', GARBAGE, text(now), artifact)
    end
end

local function dereference(artifact)
    if call('HINCRBY', REFERENCES, artifact, -1) == 0 then
        call('HDEL', REFERENCES, artifact)
        discard(artifact)
    end
end

-- Returns: the record's fields and whether it is live; nil if there is none.
local function record_of(layer, key)
    local record = call('HGET', INDEX[layer], key)
    if not record then
        return nil
    end
    local generation, size, token, artifact = string.match(record, '^(%d+)|(%d+)|([^|]*)|(.*)$')
    local is_live = generation == state.generation
    return {size = size, token = token, artifact = artifact, is_live = is_live}
end

local function item_of(layer, key, record)
    return layer .. '|' .. record.size .. '|' .. record.artifact .. '|' .. key
end

-- Take a record out, live or stale. If `order` names a key without a record, Redis has evicted what must not be evicted
-- and no count can be trusted: the next call begins a new epoch.
local function remove(layer, key, record)
    if not record then
        call('HDEL', STATE, 'epoch')
        return
    end
    call('HDEL', INDEX[layer], key)
    call('ZREM', ORDER[layer], key)
    if record.is_live then
        add(layer, 'entries', -1)
        add(layer, 'bytes', -record.size)
        if call('HEXISTS', PINNED, item_of(layer, key, record)) == 1 then
            add(layer, 'pinned', -record.size)
            add(layer, 'orphaned', record.size)
        end
    end
    dereference(record.artifact)
end

-- ended: the moment of the last use that the pin stands for.
local function unpin(token, ended)
    local item = call('HGET', PINS, token)
    if not item then
        return
    end
    call('HDEL', PINS, token)
    call('ZREM', PIN_ENDS, token)
    if call('HINCRBY', PINNED, item, -1) > 0 then
        return
    end
    call('HDEL', PINNED, item)
    local layer, size, artifact, key = string.match(item, '^([^|]*)|(%d+)|([^|]*)|(.*)$')
    local record = record_of(layer, key)
    local is_named = record and record.artifact == artifact and record.size == size
    if is_named and record.is_live then
        add(layer, 'pinned', -size)
        use(layer, key, math.max(ended, tonumber(state.cleared) + 1))
    else
        add(layer, 'orphaned', -size)
        if is_named then
            remove(layer, key, record)
        end
    end
    dereference(artifact)
end

-- record: {size, artifact}; whether it is in the index, the index itself says. An empty token is no pin.
local function pin(token, lifetime_ms, layer, key, record)
    if token == '' then
        return
    end
    local item = item_of(layer, key, record)
    local held = call('HGET', PINS, token)
    if held and held ~= item then
        unpin(token, now)
    end
    call('ZADD', PIN_ENDS, text(now + lifetime_ms * 1000), token)
    if held == item then
        return
    end
    call('HSET', PINS, token, item)
    if call('HINCRBY', PINNED, item, 1) > 1 then
        return
    end
    reference(record.artifact)
    local indexed = record_of(layer, key)
    local is_named = indexed and indexed.artifact == record.artifact and indexed.size == record.size
    if is_named then
        call('ZREM', ORDER[layer], key)
    end
    add(layer, is_named and indexed.is_live and 'pinned' or 'orphaned', record.size)
end

-- End the pins and entries whose time is over; pins first, since an entry's idle time begins when its last pin ends.
-- Returns: whether all are done.
local function end_of_life()
    local left = BUDGET
    local over = call('ZRANGEBYSCORE', PIN_ENDS, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, left)
    for i = 1, #over, 2 do
        unpin(over[i], tonumber(over[i + 1]))
        left = left - 1
    end
    for _, layer in ipairs(LAYERS) do
        local idle = {}
        if left > 0 then
            local oldest, newest = '(' .. state.cleared, text(now - ARGV[2])
            idle = call('ZRANGEBYSCORE', ORDER[layer], oldest, newest, 'LIMIT', 0, left)
        end
        for _, key in ipairs(idle) do
            remove(layer, key, record_of(layer, key))
            add(layer, 'expirations', 1)
            left = left - 1
        end
    end
    return left > 0
end
