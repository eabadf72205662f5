"""What the model is asked: three worked examples, then the note with its three closest diagnoses.

The permitted answers are not in the prompt, which has room for a few of them at most; they are in the mask. The three
best hits and the examples are what a model of 135 million parameters needs to choose sensibly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["chat_messages"]

_TASK = "You are a medical coder. You answer with one ICD-10-CM diagnosis and nothing else."
_N_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Example:
    note: str
    closest: tuple[str, ...]
    answer: str


_EXAMPLES = (
    _Example(
        "Patient slipped on wet stairs yesterday. Right ankle swollen, tender over the lateral ligament, no fracture "
        "on film. Impression: sprained right ankle, first visit.",
        (
            "Sprain of unspecified ligament of right ankle, initial encounter",
            "Sprain of tibiofibular ligament of right ankle, initial encounter",
            "Sprain of deltoid ligament of left ankle, subsequent encounter",
        ),
        "Sprain of unspecified ligament of right ankle, initial encounter",
    ),
    _Example(
        "45-year-old with heartburn after meals for months. Endoscopy shows inflamed lower oesophagus. "
        "Impression: reflux oesophagitis without bleeding.",
        (
            "Gastro-esophageal reflux disease without esophagitis",
            "Gastro-esophageal reflux disease with esophagitis, without bleeding",
            "Heartburn",
        ),
        "Gastro-esophageal reflux disease with esophagitis, without bleeding",
    ),
    _Example(
        "Child with itchy rash, vesicles in crops over trunk and face for two days, mild fever. No cough, lungs clear. "
        "Impression: chickenpox.",
        ("Varicella pneumonia", "Varicella meningitis", "Varicella without complication"),
        "Varicella without complication",
    ),
)


def chat_messages(note: str, retrieved: Sequence[str]) -> list[dict[str, str]]:
    """The conversation to post.

    Args:
        note: the clinical note.
        retrieved: descriptions, best match first.
    """
    messages = [{"role": "system", "content": _TASK}]
    for example in _EXAMPLES:
        messages.append({"role": "user", "content": _question(example.note, example.closest)})
        messages.append({"role": "assistant", "content": example.answer})
    return [*messages, {"role": "user", "content": _question(note, retrieved[:_N_SHOWN])}]


def _question(note: str, closest: Sequence[str]) -> str:
    listed = "\n".join(f"- {description}" for description in closest)
    return f"Note: {note}\n\nClosest diagnoses:\n{listed}\n\nWhich one fits the note?"
