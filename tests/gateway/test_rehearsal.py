"""No kernel is left to be loaded on the event loop."""

import os
import subprocess
import sys
from pathlib import Path

from maskfeed.service.rehearsal import rehearse
from maskfeed_automata import Vocabulary

TESTS = Path(__file__).resolve().parents[1]
ROOTS = [str(TESTS.parent / root) for root in ("automata", "cache", "workers", "middleware")]

# Counts specialisations of every kernel before and after the sets that requests bring.
PROGRAM = """
import sys
from fake_engine import VOCABULARY
from maskfeed.service.rehearsal import rehearse
from maskfeed_automata import CandidateSet, build, shortest_tokenisation

def specialised():
    kernels = {
        (module.__name__, name): len(value.signatures)
        for module in list(sys.modules.values()) if module.__name__.startswith("maskfeed_automata")
        for name, value in vars(module).items() if hasattr(value, "signatures") and hasattr(value, "py_func")
    }
    assert kernels
    return kernels

rehearse(VOCABULARY)
before = specialised()
for names in (["a"], ["b", "a", "b"], ["a\\nb", "a\\x00", "é"], [f"name {i * 7919 % 10007}" for i in range(5000)]):
    candidate_set = CandidateSet.from_strings(names)
    for leading_space in ("never", "optional", "always"):
        candidate_set.digest(VOCABULARY.fingerprint, leading_space)
        build(VOCABULARY, candidate_set, leading_space=leading_space).to_bytes()
    shortest_tokenisation(VOCABULARY, candidate_set.candidate_bytes(0))
after = specialised()
print([kernel for kernel in after if after[kernel] != before.get(kernel)])
"""


def test_after_a_rehearsal_no_request_loads_a_kernel():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *ROOTS])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_vocabulary_without_text_has_nothing_to_rehearse():
    rehearse(Vocabulary.from_token_bytes([None, None]))
    rehearse(Vocabulary.from_token_bytes([b"a", None]))
