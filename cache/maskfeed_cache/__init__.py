"""The cache room: compiled sets under their hash, their index, and the feed between gateways and engines.

It knows bytes, hashes, keys and streams; it does not know what an artifact means, how a set is compiled, or what a
request is. Invariant: no exception of the Redis driver leaves this package.
"""
