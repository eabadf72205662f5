"""Where work is done: compilers, the rank feed, and the processor inside vLLM.

Nothing is imported here: the engine's API server imports one light module of this package and must not pay for the
rest.
"""
