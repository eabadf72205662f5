"""One turn: a note, what was retrieved for it, and the model's answer, through maskfeed and through vLLM alone.

It knows the two HTTP APIs. It starts nothing and prints nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from prompt import chat_messages
from retrieval import Code

__all__ = ["STAGES", "ConstrainedAnswer", "NativeAnswer", "WrongAnswer", "ask_maskfeed", "ask_native"]

# of a set's way to the engine, in the order in which they happen
STAGES = ("queue", "compile", "commit", "ready")


class WrongAnswer(Exception):
    """An answer that is not one of the candidates. It must never happen."""


@dataclass(frozen=True, slots=True)
class ConstrainedAnswer:
    """What the gateway answered."""

    chosen: Code
    # milliseconds of each of STAGES, as the gateway reports them
    stage_ms: dict[str, float]
    # of the whole request, as the client sees it
    total_ms: float


@dataclass(frozen=True, slots=True)
class NativeAnswer:
    """What vLLM's own `structured_outputs.choice` answered, or why it did not."""

    text: str | None
    problem: str | None
    total_ms: float


def ask_maskfeed(client: openai.OpenAI, model: str, note: str, retrieved: Sequence[Code]) -> ConstrainedAnswer:
    """Post the retrieved codes as the only permitted answers.

    Args:
        client: of the gateway.
        model: the served model's name.
        note: the clinical note.
        retrieved: best match first; the answer is one of them.

    Raises:
        WrongAnswer: the answer is none of them.
    """
    candidates = [{"value": code.description, "id": code.code} for code in retrieved]
    began = time.perf_counter()
    response = client.chat.completions.create(
        model=model,
        messages=_messages(note, retrieved),
        temperature=0,
        extra_body={"candidates": candidates},
    )
    total_ms = (time.perf_counter() - began) * 1000
    report: dict[str, Any] | None = (response.model_extra or {}).get("maskfeed")
    if report is None:
        raise WrongAnswer("the answer carries no report of maskfeed, so nothing constrained it")
    chosen = Code(report["id"], response.choices[0].message.content or "")
    if chosen not in set(retrieved):
        raise WrongAnswer(f"{chosen} is none of the {len(retrieved)} candidates")
    return ConstrainedAnswer(chosen, {stage: report[f"{stage}_ms"] for stage in STAGES}, total_ms)


def ask_native(
    client: openai.OpenAI, model: str, note: str, retrieved: Sequence[Code], *, limit_s: float
) -> NativeAnswer:
    """The same turn through vLLM's own structured output.

    Args:
        client: of the engine itself.
        model: the served model's name.
        note: the clinical note.
        retrieved: best match first.
        limit_s: after that long the request is given up.
    """
    choice = [code.description for code in retrieved]
    began = time.perf_counter()
    text, problem = None, None
    try:
        response = client.with_options(timeout=limit_s).chat.completions.create(
            model=model,
            messages=_messages(note, retrieved),
            temperature=0,
            extra_body={"structured_outputs": {"choice": choice}},
        )
        text = response.choices[0].message.content
    except openai.APITimeoutError:
        problem = f"given up after {limit_s:.0f} s"
    except openai.APIStatusError as error:
        problem = f"HTTP {error.status_code}: {error.message[:120]}"
    except openai.APIConnectionError as error:
        problem = f"connection lost: {error}"
    return NativeAnswer(text, problem, (time.perf_counter() - began) * 1000)


def _messages(note: str, retrieved: Sequence[Code]) -> Any:
    return chat_messages(note, [code.description for code in retrieved])
