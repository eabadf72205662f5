"""One measurement of a peer, in its own process: `python peers.py xgrammar 1000` prints one line of JSON.

xgrammar gets the grammar that vLLM makes of `choice`; llguidance its enumeration (one rule with an alternative a
name) and the form that is fast for it (one terminal with an alternative a name).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from names import candidate_names
from transformers import AutoTokenizer

from tokenizer_files import tokenizer_directory

FirstMask = Callable[[list[str]], Any]


def xgrammar(tokenizer: Any) -> FirstMask:
    """Grammar with one alternative a name; returns the filled bitmask row."""
    import xgrammar as xgr

    info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    compiler = xgr.GrammarCompiler(info, max_threads=8, cache_enabled=False)
    bitmask = xgr.allocate_token_bitmask(1, len(tokenizer))

    def first_mask(names: list[str]) -> Any:
        grammar = compiler.compile_grammar("root ::= " + " | ".join(json.dumps(name) for name in names))
        xgr.GrammarMatcher(grammar).fill_next_token_bitmask(bitmask)
        return bitmask[0].numpy()

    return first_mask


def llguidance(tokenizer: Any, head: str) -> FirstMask:
    """Lark grammar that begins with `head`; returns the filled bitmask row."""
    from llguidance import LLMatcher
    from llguidance import hf as llguidance_hf
    from llguidance import numpy as llguidance_numpy

    vocabulary = llguidance_hf.from_tokenizer(tokenizer, n_vocab=len(tokenizer))
    bitmask = llguidance_numpy.allocate_token_bitmask(1, len(tokenizer))

    def first_mask(names: list[str]) -> Any:
        grammar = LLMatcher.grammar_from_lark(head + " | ".join(json.dumps(name) for name in names))
        matcher = LLMatcher(vocabulary, grammar)
        llguidance_numpy.fill_next_token_bitmask(matcher, bitmask, 0)
        if matcher.is_error():
            raise RuntimeError(matcher.get_error().splitlines()[0])
        return bitmask[0]

    return first_mask


def main(peer: str, k: int) -> dict[str, object]:
    """Median milliseconds of compile + first mask for `k` names."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory("qwen3"))
    first_mask = {
        "xgrammar": lambda: xgrammar(tokenizer),
        "llguidance-enum": lambda: llguidance(tokenizer, "start: "),
        "llguidance-terminal": lambda: llguidance(tokenizer, "start: NAME\nNAME: "),
    }[peer]()
    first_mask(candidate_names(3, seed=2))
    names = candidate_names(k)
    times: list[float] = []
    while not times or (len(times) < 9 and sum(times) < 5):
        start = time.perf_counter()
        try:
            row = first_mask(names)
        except RuntimeError as error:
            return {"gave_up": str(error)}
        times.append(time.perf_counter() - start)
    from compile_time import mask_hash

    ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return {"compile_and_first_mask": median(times) * 1e3, "root_mask": mask_hash(ids)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
