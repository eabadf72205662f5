"""Candidates in `generate()` of transformers, beside transformers' own prefix function on the same model."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import maskfeed_automata
import maskfeed_workers
from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.errors import ParameterError
from maskfeed_workers.hf_processor import CandidateLogitsProcessor
from model_files import smollm2_directory
from token_trie import prefix_function, token_trie

PROMPT = "The user wants to see the list. The tool to call is: "
# Few and short, because a token trie holds every tokenisation; one is a prefix of another, one ends inside a token.
SETS = (
    ["get_user", "get_users", "list_all"],
    ["yes", "no", "maybe not"],
    ["Zoë", "Zoé", "日本"],
    ["apple pie"],
    ["a", "aa", "aaa", "b"],
)


@pytest.fixture(scope="module")
def tokenizer():
    loaded = AutoTokenizer.from_pretrained(smollm2_directory(), padding_side="left")
    loaded.pad_token = loaded.eos_token
    return loaded


@pytest.fixture(scope="module")
def model():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads wait for each other a hundred times longer when the machine is busy
    yield AutoModelForCausalLM.from_pretrained(smollm2_directory(), dtype=torch.float32).eval()
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary.from_tokenizer(tokenizer)


def generate(model, tokenizer, prompts: list[str], seed: int = 0, **arguments) -> torch.Tensor:
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(seed)
    return model.generate(**inputs, max_new_tokens=12, pad_token_id=tokenizer.pad_token_id, **arguments)


SEARCHES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.5, "top_k": 0},
    "three samples for a prompt": {"do_sample": True, "num_return_sequences": 3, "top_p": 0.9},
    "four beams": {"num_beams": 4, "do_sample": False},
    "four beams, all returned": {"num_beams": 4, "num_return_sequences": 4, "do_sample": False},
    "sampled beams": {"num_beams": 3, "do_sample": True},
}
LONG_SEARCHES = ("four beams, all returned", "sampled beams")


@pytest.mark.parametrize(
    "search",
    [pytest.param(search, marks=[pytest.mark.full] if search in LONG_SEARCHES else []) for search in SEARCHES],
)
def test_sequences_are_those_of_a_prefix_function_over_a_trie_of_all_tokenisations(
    model, tokenizer, vocabulary, search
):
    for seed, candidates in enumerate(SETS):
        # transformers counts the samples of a prompt as prompts of their own, its beams not
        tries = [token_trie(vocabulary, candidates)] * SEARCHES[search].get("num_return_sequences", 1)
        prompt_length = len(tokenizer(PROMPT).input_ids)
        theirs = generate(
            model,
            tokenizer,
            [PROMPT],
            seed,
            prefix_allowed_tokens_fn=prefix_function(tries, prompt_length, tokenizer.eos_token_id),
            **SEARCHES[search],
        )
        processor = CandidateLogitsProcessor(compile(vocabulary, candidates))
        ours = generate(model, tokenizer, [PROMPT], seed, logits_processor=[processor], **SEARCHES[search])
        assert ours.tolist() == theirs.tolist(), candidates
        text = tokenizer.decode(ours[0, prompt_length:], skip_special_tokens=True)
        index = processor.candidate_indices(ours)[0]
        assert index is not None
        assert text == candidates[index]


@pytest.mark.parametrize("search", ["greedy", "sampling", "three samples for a prompt", "four beams"])
def test_prompts_of_different_lengths_have_a_set_each(model, tokenizer, vocabulary, search):
    prompts = [PROMPT, "Yes or no? ", "Name one of them, and say nothing else but the name of it: "]
    sets = SETS[:3]
    n_samples = SEARCHES[search].get("num_return_sequences", 1)
    tries = [trie for candidates in sets for trie in [token_trie(vocabulary, candidates)] * n_samples]
    padded = tokenizer(prompts, return_tensors="pt", padding=True).input_ids.shape[1]
    allowed = prefix_function(tries, padded, tokenizer.eos_token_id)
    theirs = generate(model, tokenizer, prompts, prefix_allowed_tokens_fn=allowed, **SEARCHES[search])
    processor = CandidateLogitsProcessor([compile(vocabulary, candidates) for candidates in sets])
    ours = generate(model, tokenizer, prompts, logits_processor=[processor], **SEARCHES[search])
    assert ours.tolist() == theirs.tolist()
    for row, index in enumerate(processor.candidate_indices(ours)):
        text = tokenizer.decode(ours[row, padded:], skip_special_tokens=True)
        assert index is not None
        assert text == sets[row // n_samples][index]


def test_the_only_tokenisation_of_a_canonical_trie_is_one_of_those_that_are_permitted(tokenizer, vocabulary):
    """A trie over the tokenizer's own splitting permits less: it forbids ways to spell a candidate."""
    for candidates in SETS:
        automaton = compile(vocabulary, candidates)
        n_canonical = n_permitted = 0
        for candidate in candidates:
            cursor = automaton.cursor()
            for token_id in tokenizer(candidate, add_special_tokens=False).input_ids:
                n_permitted += len(cursor.allowed_token_ids())
                n_canonical += 1
                cursor.advance(token_id)
            assert cursor.candidate_index == candidates.index(candidate)
        assert n_permitted >= n_canonical


def test_raw_logits_that_generate_hands_out_are_not_masked(model, tokenizer, vocabulary):
    processor = CandidateLogitsProcessor(compile(vocabulary, SETS[0]))
    made = generate(
        model,
        tokenizer,
        [PROMPT],
        logits_processor=[processor],
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert all(torch.isfinite(logits).all() for logits in made.logits)


# --- without a model ---------------------------------------------------------------------------------------------

TOKENS = [b"a", b"b", b"ab", None]
STOP = 3


def small_automaton(candidates: list[str], stop_token_ids: Sequence[int] = (STOP,)):
    return compile(Vocabulary.from_token_bytes(TOKENS), candidates, stop_token_ids=stop_token_ids)


def permitted(processor: CandidateLogitsProcessor, rows: list[list[int]]) -> list[list[int]]:
    masked = processor(torch.tensor(rows), torch.zeros(len(rows), len(TOKENS)))
    return [torch.isfinite(row).nonzero().flatten().tolist() for row in masked]


def test_rows_that_are_copied_reordered_and_taken_back_keep_the_state_of_their_tokens():
    processor = CandidateLogitsProcessor(small_automaton(["aab", "abb", "b"]))
    assert permitted(processor, [[9, 9], [9, 9]]) == [[0, 1, 2]] * 2
    assert permitted(processor, [[9, 9, 0], [9, 9, 2]]) == [[0, 1, 2], [1]]
    assert permitted(processor, [[9, 9, 2, 1], [9, 9, 0, 0]]) == [[STOP], [1]]
    assert permitted(processor, [[9, 9, 0, 2], [9, 9, 0, 2]]) == [[STOP]] * 2
    assert permitted(processor, [[9, 9], [9, 9]]) == [[0, 1, 2]] * 2


def test_a_finished_row_and_a_beam_that_left_the_set_may_only_end():
    processor = CandidateLogitsProcessor(small_automaton(["ab", "b"]))
    permitted(processor, [[9], [9]])
    permitted(processor, [[9, 1], [9, 1]])
    assert permitted(processor, [[9, 1, STOP], [9, 1, 0]]) == [[STOP], [STOP]]
    assert permitted(processor, [[9, 1, STOP, 0], [9, 1, 0, 2]]) == [[STOP], [STOP]]
    assert processor.candidate_indices(torch.tensor([[9, 1, STOP, 0], [9, 1, 0, 2]])) == [1, None]


def test_scores_stay_as_they_were_and_what_is_permitted_keeps_its_bits():
    processor = CandidateLogitsProcessor(small_automaton(["ab"]))
    scores = torch.randn(2, 9, dtype=torch.bfloat16)
    before = scores.clone()
    masked = processor(torch.zeros(2, 1, dtype=torch.int64), scores)
    assert torch.equal(scores, before)
    assert torch.equal(masked[:, [0, 2]], before[:, [0, 2]])
    assert torch.isneginf(masked[:, [1, *range(3, 9)]]).all()


def test_other_prompts_need_another_processor():
    processor = CandidateLogitsProcessor(small_automaton(["ab"]))
    permitted(processor, [[8, 9]])
    with pytest.raises(ParameterError, match="for each call"):
        permitted(processor, [[9, 9, 9]])
    with pytest.raises(ParameterError, match="for each call"):
        permitted(processor, [[8, 9], [8, 9]])


def test_what_can_not_work_is_refused_before_a_token_is_chosen():
    with pytest.raises(ParameterError, match="no stop ids"):
        CandidateLogitsProcessor(small_automaton(["ab"], stop_token_ids=()))
    with pytest.raises(ParameterError, match="at least one"):
        CandidateLogitsProcessor([])
    other = compile(Vocabulary.from_token_bytes([b"a", None]), ["a"], stop_token_ids=[1])
    with pytest.raises(ParameterError, match="different vocabularies"):
        CandidateLogitsProcessor([small_automaton(["ab"]), other])
    with pytest.raises(ParameterError, match="shared out"):
        permitted(CandidateLogitsProcessor([small_automaton(["ab"])] * 2), [[9], [9], [9]])
    with pytest.raises(ParameterError, match="logits_width"):
        CandidateLogitsProcessor(small_automaton(["ab"]))(torch.tensor([[9]]), torch.zeros(1, 3))


def test_without_transformers_the_error_names_the_extra():
    code = "import sys; sys.modules['transformers'] = None; import maskfeed_workers.hf_processor"
    roots = (maskfeed_automata, maskfeed_workers)
    path = os.pathsep.join(str(Path(package.__path__[0]).parent) for package in roots)
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 1
    assert "pip install 'maskfeed[hf]'" in finished.stderr
