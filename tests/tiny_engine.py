"""An engine that a test can play by hand: a vocabulary of all bytes and a few words, its record, and its responses."""

import json

from maskfeed.service.requests import parse_request
from maskfeed_automata import CandidateSet, Vocabulary
from maskfeed_cache.feed_messages import EngineRecord
from maskfeed_cache.handle import Handle

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

EOS, RESERVED, OTHER_STOP, PADDING = 300, 301, 302, 303
WORDS = {b"Pa": 256, b" Pa": 257, b"ris": 258, b"\xc3": 0xC3}
VOCABULARY = Vocabulary.from_token_bytes(
    [*(bytes([byte]) for byte in range(256)), b"Pa", b" Pa", b"ris", *[None] * (PADDING + 1 - 259)],
    stop_token_ids=[EOS],
)
RECORD = EngineRecord(
    epoch="0" * 16,
    group="default",
    fingerprint=VOCABULARY.fingerprint,
    logits_width=400,
    max_model_len=512,
    reserved_id=RESERVED,
    stop_token_ids=(EOS,),
    model="tiny",
    reasoning_parser=None,
    format_versions=(1,),
    n_ranks=1,
    engine_version="0",
)
HANDLE = Handle(artifact_hash="a" * 64, epochs=("0" * 16,), reserved_id=RESERVED, nonce="b" * 32)
FIGURES = {"cache": "miss", "queue_ms": 0.1, "compile_ms": 2.5, "commit_ms": 0.4, "ready_ms": 3.0}


def ask(candidates, *, route=CHAT, **body):
    """A parsed request and its set."""
    raw = json.dumps({"candidates": candidates, **body}).encode()
    request = parse_request(route, raw, reasoning_parser=None)
    return request, CandidateSet.from_strings(request.values)


def tokens(text):
    """Ids that spell a text, a token per byte."""
    return list(text.encode() if isinstance(text, str) else text)


def said(token_ids, *, finish_reason="stop", stop_reason=None, **members):
    """What the engine has to say of one choice."""
    return {"token_ids": token_ids, "finish_reason": finish_reason, "stop_reason": stop_reason, **members}


def response(request, *choices, **members):
    """The engine's body, with texts that must not be believed."""
    shown = []
    for index, choice in enumerate(choices):
        if request.route == CHAT:
            text = {"message": {"role": "assistant", "content": None, "reasoning": "the engine's text"}}
        else:
            text = {"text": "the engine's text", "prompt_token_ids": [9, 9]}
        shown.append({"index": index, "logprobs": None, **text, **choice})
    return {"id": "x-1", "model": "tiny", "choices": shown, "usage": {"total_tokens": 5}, **members}


def chunk(request, index, token_ids, *, finish_reason=None, **members):
    """One event of the engine's stream, with a text that must not be believed."""
    said_so_far = {"index": index, "logprobs": None, "finish_reason": finish_reason, "token_ids": token_ids, **members}
    if request.route == CHAT:
        said_so_far["delta"] = {"reasoning": "the engine's text"}
    else:
        said_so_far["text"] = "the engine's text"
    return json.dumps({"id": "x-1", "model": "tiny", "choices": [said_so_far]}).encode()


def role_chunk(index=0):
    """The first event of a chat stream."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return json.dumps({"id": "x-1", "choices": [choice], "prompt_token_ids": [9, 9]}).encode()
