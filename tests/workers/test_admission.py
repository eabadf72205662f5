"""The verdict on a request: a set, a refusal, or none of our business; never an unconstrained row."""

from types import SimpleNamespace

import pytest

from maskfeed_automata import Vocabulary, compile
from maskfeed_automata.errors import CandidateError, HandleError, ParameterError
from maskfeed_cache.handle import HANDLE_KEY, Handle
from maskfeed_workers.admission import Admission, check_request
from maskfeed_workers.agreement import Alone
from maskfeed_workers.slots import Constraint, Refusal

STOP, RESERVED = 26, 27
VOCABULARY = Vocabulary.from_token_bytes([bytes([c]) for c in range(ord("a"), ord("z") + 1)] + [None, None])
EPOCH, OTHER_EPOCH = "00000000000000aa", "00000000000000bb"
HASH = "ab" * 32
NONCE = "cd" * 16


class Held:
    """Holds one set and remembers who refers to it."""

    def __init__(self):
        self.automaton = compile(VOCABULARY, ["cat", "cow"])
        self.slots: dict[int, str] = {}

    def acquire(self, artifact_hash, nonce, slot):
        if artifact_hash != HASH:
            return None
        self.slots[slot] = nonce
        return self.automaton

    def release(self, slot):
        del self.slots[slot]


def parameters(given, *, stops=(STOP, RESERVED), **changed):
    fields = {
        "extra_args": None if given is None else {HANDLE_KEY: given},
        "stop_token_ids": list(stops),
        "all_stop_token_ids": set(stops),
        "min_tokens": 0,
        "ignore_eos": False,
    }
    return SimpleNamespace(**(fields | changed))


def handle(**changed) -> str:
    fields = {"artifact_hash": HASH, "epochs": (OTHER_EPOCH, EPOCH), "reserved_id": RESERVED, "nonce": NONCE}
    return Handle(**(fields | changed)).to_text()


def admission(held=None) -> Admission:
    return Admission(
        vocabulary=VOCABULARY,
        logits_width=28,
        max_model_len=8,
        reserved_id=RESERVED,
        epoch=EPOCH,
        agreement=None if held is None else Alone(held),
    )


def decide(gate: Admission, *entering):
    """The verdicts on requests that enter one by one."""
    verdicts = [gate.decide([each])[0] for each in entering]
    return verdicts if len(verdicts) > 1 else verdicts[0]


def test_a_request_without_our_key_is_none_of_our_business():
    assert decide(admission(Held()), parameters(None)) is None
    assert decide(admission(), SimpleNamespace(extra_args={"other": 1})) is None


def test_a_handle_of_this_life_gets_the_set_and_one_reference_per_row():
    held = Held()
    gate = admission(held)
    verdicts = [decide(gate, parameters(handle())) for _ in range(3)]  # n=3: three rows, one nonce
    assert all(isinstance(v, Constraint) and v.automaton is held.automaton for v in verdicts)
    assert verdicts[0].stop_token_ids == (STOP,), "the reserved id ends nothing that is an answer"
    assert sorted(held.slots.values()) == [NONCE] * 3
    verdicts[1].release()
    assert len(held.slots) == 2


@pytest.mark.parametrize(
    "changed",
    [{"epochs": (OTHER_EPOCH,)}, {"artifact_hash": "ef" * 32}, {"reserved_id": STOP}],
    ids=["another life", "a set that is not held", "another reserved id"],
)
def test_a_handle_that_does_not_fit_this_engine_is_refused_with_its_own_reserved_id(changed):
    verdict = decide(admission(Held()), parameters(handle(**changed)))
    assert verdict == Refusal((changed.get("reserved_id", RESERVED),))


@pytest.mark.parametrize("given", ["mf1:nonsense", 7, ["x"], "", {"candidates": ["cat"]}])
def test_what_is_no_handle_is_refused_by_an_engine_with_a_feed(given):
    held = Held()
    assert decide(admission(held), parameters(given)) == Refusal((RESERVED,))
    assert not held.slots


@pytest.mark.parametrize(
    "changed",
    [
        {"min_tokens": 1},
        {"ignore_eos": True},
        {"all_stop_token_ids": {RESERVED}},
        {"all_stop_token_ids": {STOP, RESERVED, 3}},
    ],
    ids=["min_tokens", "ignore_eos", "nothing can end it", "a stop id that is text"],
)
def test_parameters_that_break_masks_refuse_the_row_and_take_no_reference(changed):
    held = Held()
    assert isinstance(decide(admission(held), parameters(handle(), **changed)), Refusal)
    assert not held.slots


def test_inline_candidates_are_compiled_once_and_refused_where_they_cannot_be():
    gate = admission()
    stops = (STOP,)
    first = decide(gate, parameters({"candidates": ["cat", "cow"]}, stops=stops))
    again = decide(gate, parameters({"candidates": ["cow", "cat", "cat"]}, stops=stops))
    assert isinstance(first, Constraint)
    assert again.automaton is first.automaton
    for bad in (
        {"candidates": []},
        {"candidates": ["ü"]},
        {"candidates": ["a"], "x": 1},
        {},
        {"candidates": ["abcdefgh"]},
    ):
        assert decide(gate, parameters(bad, stops=stops)) == Refusal((STOP,)), "an empty answer is no candidate"


def test_our_key_with_null_is_a_request_that_wanted_a_set_and_is_refused():
    asked = parameters(None, extra_args={HANDLE_KEY: None})
    assert decide(admission(Held()), asked) == Refusal((RESERVED,))
    with pytest.raises(HandleError):
        check_request(asked.extra_args, asked)


@pytest.mark.parametrize("key", ["Maskfeed", "mask_feed", "mask-feed", "candidates", "candidate", "MASKFEED"])
def test_a_misspelling_of_our_key_is_refused_before_the_engine_sees_it(key):
    with pytest.raises(ParameterError) as caught:
        check_request({key: {"candidates": ["a"]}}, parameters(None))
    assert caught.value.context["field"] == key


def test_keys_of_others_are_not_ours_to_refuse():
    check_request({"kv_transfer_params": {}, "masking": 1, "feed": 2}, parameters(None))


def test_an_engine_without_a_feed_takes_no_handle():
    assert decide(admission(), parameters(handle())) == Refusal((RESERVED,))


def test_the_front_end_refuses_what_can_be_seen_without_an_engine():
    check_request(None, parameters(None))
    check_request({HANDLE_KEY: handle()}, parameters(handle()))
    with pytest.raises(HandleError, match="reserved id"):
        check_request({HANDLE_KEY: handle()}, parameters(handle(), stops=(STOP,)))
    with pytest.raises(HandleError):
        check_request({HANDLE_KEY: "mf2:x"}, parameters("mf2:x"))
    with pytest.raises(CandidateError):
        check_request({HANDLE_KEY: {"candidates": ["a", ""]}}, parameters(None))
    with pytest.raises(ParameterError):
        check_request({HANDLE_KEY: handle()}, parameters(handle(), min_tokens=3))
