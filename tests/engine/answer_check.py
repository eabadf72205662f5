"""Requests over real candidate sets, and the one check that every real-engine test applies to an answer.

The check knows token bytes and the candidates of the request, nothing of masks: it reads the answer as the engine's
vocabulary spells it and looks it up in the list that was posted.
"""

import random
from dataclasses import dataclass

from candidate_sets import candidate_set
from maskfeed_automata import Vocabulary

# At least ten real sets: codes, paths, names in all scripts, tools, and the nasty ones.
SET_NAMES = (
    "icd10cm_codes",
    "trove_classifiers",
    "naics_paths",
    "mcp_tools",
    "bfcl_functions",
    "github_operations",
    "github_routes",
    "emoji",
    "file_paths",
    "nasty_blns",
    "nasty_whitespace",
    "nasty_json_escape",
    "numeric_ids",
)
SIZES = (1, 2, 10, 100, 1_000, 5_000)
PROMPTS = ("Name one:", "The answer is", "Pick the best match for a cold winter day:", "Q: which code?\nA:", "1, 2,")
# Longer ones are legal, but an answer of a thousand tokens would only make the test slow.
LONGEST_BYTES = 160


@dataclass(frozen=True, slots=True)
class Request:
    """One turn: its own prompt, its own candidates."""

    set_name: str
    prompt: str
    candidates: list[str]
    temperature: float
    seed: int


def requests(n: int, *, seed: int) -> list[Request]:
    """`n` turns; sets, sizes, prompts and temperatures (0 and 1) in turn, members drawn at random."""
    rng = random.Random(seed)
    pools = {name: [c for c in candidate_set(name) if 0 < len(c.encode()) <= LONGEST_BYTES] for name in SET_NAMES}
    made = []
    for i in range(n):
        name = SET_NAMES[i % len(SET_NAMES)]
        pool = pools[name]
        size = min(rng.choice(SIZES), len(pool))
        made.append(Request(name, rng.choice(PROMPTS), rng.sample(pool, size), float(i % 2), seed=i))
    return made


def spelled(vocabulary: Vocabulary, token_ids: list[int], stop_ids: tuple[int, ...]) -> bytes:
    """The bytes of an answer that ended at a stop id."""
    assert token_ids, "an answer has tokens"
    assert token_ids[-1] in stop_ids, f"the answer did not end at a stop id: {token_ids[-5:]}"
    return vocabulary.text_bytes(token_ids[:-1])


def check_answer(request: Request, vocabulary: Vocabulary, token_ids: list[int], stop_ids: tuple[int, ...]) -> str:
    """The candidate that the tokens spell; AssertionError when they spell none."""
    answer = spelled(vocabulary, token_ids, stop_ids)
    assert answer in {c.encode() for c in request.candidates}, (
        f"{answer!r} is none of the {len(request.candidates)} candidates from {request.set_name}"
    )
    return answer.decode()
