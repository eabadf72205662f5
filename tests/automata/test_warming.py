"""After warming, nothing compiles any more: a kernel that compiles on a request's way stalls the whole process."""

import json
import subprocess
import sys

WALK = """
import gc, json, random, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from maskfeed_automata import *
from maskfeed_automata import warm_kernels

def signatures():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {f"{each.py_func.__module__}.{each.__name__}": len(each.signatures) for each in kernels}

warm_kernels()
before = signatures()
rng = random.Random(0)
for round_ in range(60):
    tokens = [bytes([b]) for b in range(256)] if round_ % 2 else [b"a", b"b", b" "]
    tokens += [bytes(rng.choice(b"ab c") for _ in range(rng.randint(1, 9))) for _ in range(40)] + [None]
    stop = len(tokens) - 1
    made = Vocabulary.from_token_bytes(tokens)
    vocabulary = made if round_ % 3 else Vocabulary.from_bytes(made.to_bytes())
    mode = ("never", "optional", "always")[round_ % 3]
    words = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 30))) for _ in range(rng.choice([1, 2, 50, 3000]))]
    if round_ % 4 == 0:
        words = sorted(set(words))
    if round_ % 2 and round_ % 5 == 0:
        words += ["ü", "a\\0", b"\\xff"]
    candidate_set = CandidateSet.from_strings(words)
    candidate_set.digest(vocabulary.fingerprint, mode)
    candidate_set.ranks_of(CandidateSet.from_strings(["ab", *words[:3]]))
    automaton = compile(vocabulary, words, stop_token_ids=[stop], leading_space=mode)
    if round_ % 2:
        automaton = Automaton.from_bytes(automaton.to_bytes(), vocabulary, stop_token_ids=[stop])
    catalogue = Catalogue(vocabulary, words, leading_space=mode)
    chosen = [rng.randrange(len(words)) for _ in range(1 + round_ % 7)]
    catalogue.subset(np.array(chosen, np.uint16) if round_ % 2 else chosen)
    cursor = automaton.cursor()
    while not cursor.is_finished:
        row = allocate_bitmask(1, vocabulary.size)[0]
        cursor.fill_bitmask(row)
        cursor.forced_text
        cursor.advance(int(rng.choice(cursor.allowed_token_ids())))
    cursor.candidate_index
    shortest_tokenisation(vocabulary, b"abab")
grown = {name: n for name, n in signatures().items() if n != before.get(name)}
print(json.dumps({"grown": grown, "kernels": len(before), "loaded": sum(map(bool, before.values()))}))
"""


def test_no_kernel_is_compiled_after_warming():
    child = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=True, timeout=300)
    seen = json.loads(child.stdout)
    assert seen["grown"] == {}
    assert seen["kernels"] > 20
