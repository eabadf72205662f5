"""A peer in a process of its own: questions as lines of JSON on standard input, answers on standard output.

xgrammar gets the grammar that vLLM makes of `choice`; llguidance its enumeration (one rule with an alternative for
each candidate) and the form that is fast for it (one terminal with an alternative for each). `peer_process` starts
this program with the Python of the environment that holds the wanted versions.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from made_up_sets import made_up_set
from transformers import AutoTokenizer

from tokenizer_files import tokenizer_directory

FirstMask = Callable[[list[str]], Any]
_ENOUGH_S = 5.0
_ROUNDS = 9


def xgrammar_grammar(candidates: list[str]) -> str:
    """What vLLM hands to xgrammar for `choice`."""
    return "root ::= " + " | ".join(json.dumps(text) for text in candidates)


def xgrammar(tokenizer: Any) -> FirstMask:
    """Grammar with one alternative for each candidate; returns the filled bitmask row."""
    import xgrammar as xgr

    info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    compiler = xgr.GrammarCompiler(info, max_threads=8, cache_enabled=False)
    bitmask = xgr.allocate_token_bitmask(1, len(tokenizer))

    def first_mask(candidates: list[str]) -> Any:
        grammar = compiler.compile_grammar(xgrammar_grammar(candidates))
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

    def first_mask(candidates: list[str]) -> Any:
        grammar = LLMatcher.grammar_from_lark(head + " | ".join(json.dumps(text) for text in candidates))
        matcher = LLMatcher(vocabulary, grammar)
        llguidance_numpy.fill_next_token_bitmask(matcher, bitmask, 0)
        if matcher.is_error():
            raise RuntimeError(matcher.get_error().splitlines()[0])
        return bitmask[0]

    return first_mask


def measure_compile(first_mask: FirstMask, path: str) -> dict[str, object]:
    """Median milliseconds of compile + first mask of the candidates in a file, and what the mask is."""
    candidates = json.loads(Path(path).read_text())
    times: list[float] = []
    while not times or (len(times) < _ROUNDS and sum(times) < _ENOUGH_S):
        start = time.perf_counter()
        row = first_mask(candidates)
        times.append(time.perf_counter() - start)
    ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return {"compile_and_first_mask": median(times) * 1e3, "root_ids": ids.tolist()}


def measure_apply(tokenizer: Any, n_rows: int, n_sets: int, n_candidates: int, walk: list[list[int]]) -> dict[str, Any]:
    """xgrammar's masks on [n_rows, width] float32 logits, step by step.

    `walk[step]` has the token of each row that is taken after the step. Answers with milliseconds of a step (tokens
    accepted, all rows filled, bitmask applied; the best of three walks for each step) and the number of entries left.
    """
    import torch
    import xgrammar as xgr

    torch.set_num_threads(1)
    width = len(tokenizer)
    compiler = xgr.GrammarCompiler(xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=width), cache_enabled=False)
    sets = [made_up_set("names", n_candidates, seed=seed) for seed in range(n_sets)]
    grammars = [compiler.compile_grammar(xgrammar_grammar(names)) for names in sets]
    batch = xgr.BatchGrammarMatcher()
    bitmask = xgr.allocate_token_bitmask(n_rows, width)
    logits = torch.zeros(n_rows, width)
    times: list[list[float]] = [[] for _ in range(len(walk) + 1)]
    left = [0] * (len(walk) + 1)
    for _ in range(3):
        matchers = [xgr.GrammarMatcher(grammars[row % n_sets]) for row in range(n_rows)]
        for step in range(len(walk) + 1):
            logits.zero_()
            start = time.perf_counter()
            if step:
                for matcher, token in zip(matchers, walk[step - 1], strict=True):
                    matcher.accept_token(token)
            batch.batch_fill_next_token_bitmask(matchers, bitmask)
            xgr.apply_token_bitmask_inplace(logits, bitmask)
            times[step].append(time.perf_counter() - start)
            left[step] = int((logits == 0).sum())
    return {"ms": [min(of_step) * 1e3 for of_step in times], "n_ids": left}


def main(peer: str) -> None:
    """Answer questions until the input ends; a peer's failure is an answer too."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory("qwen3"))
    first_mask = {
        "xgrammar": lambda: xgrammar(tokenizer),
        "llguidance-enum": lambda: llguidance(tokenizer, "start: "),
        "llguidance-terminal": lambda: llguidance(tokenizer, "start: NAME\nNAME: "),
    }[peer]()
    first_mask(made_up_set("names", 3, seed=2))
    answer: dict[str, object] = {"version": version(peer.split("-")[0])}
    print(json.dumps(answer), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question.pop("what") == "compile":
                answer = measure_compile(first_mask, **question)
            else:
                answer = measure_apply(tokenizer, **question)
        except RuntimeError as error:
            answer = {"gave_up": str(error).strip().splitlines()[0][:200]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
