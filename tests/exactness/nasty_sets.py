# ruff: noqa: RUF001 - ambiguous characters are the point
"""Candidate lists made to break things, the same on every call: `nasty_set("nested_chain")`, or, for the ones that are
made of a vocabulary's own tokens, `token_edges(tokens)`. Bytes, because some are no UTF-8."""

import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import product

__all__ = ["CONTROL_TEXTS", "NASTY_SET_NAMES", "nasty_set", "token_edges"]

# Control tokens of many tokenizers, as text that somebody may want for an answer.
CONTROL_TEXTS = (
    *("<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"),
    *("<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<start_of_turn>", "<end_of_turn>", "<tool_call>"),
    *("</tool_call>", "<think>", "</think>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<SPECIAL_20>", "<0x41>", "<0x0A>"),
)

_WORDS = ["foo", "food", "fo", "new", "New York", "Zürich", "Zü", "naïve", "東京", "東", "a", "ab", "abc", "C++", "C"]


def nasty_set(name: str) -> list[bytes]:
    """The candidates of one set: unique, none empty.

    Raises:
        KeyError: not one of NASTY_SET_NAMES.
    """
    return _unique(_MAKERS[name]())


def token_edges(tokens: Sequence[bytes | None]) -> list[bytes]:
    """Random tokens in a row, each row also a byte shorter and a byte longer: ends at, before and behind token ends."""
    choose = random.Random(len(tokens))
    spelt = sorted({token for token in tokens if token})
    rows = [b"".join(choose.choice(spelt) for _ in range(choose.randint(1, 5))) for _ in range(250)]
    longest = sorted(spelt, key=len)[-50:]
    return _unique([text for row in (*rows, *longest) for text in (row, row[:-1], row + choose.choice(spelt)[:1])])


def _unique(texts: Sequence[str | bytes]) -> list[bytes]:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return [text for text in dict.fromkeys(encoded) if text]


def _prefix_pairs() -> list[str]:
    return [first + end for first, end in product(_WORDS, ("", "d", "s", " ", ".", "\n", "é", "y McFoo", "ishness"))]


def _nested_chain() -> list[str]:
    choose = random.Random(1)
    text = "".join(choose.choice(_WORDS) + choose.choice("  ,-\n") for _ in range(400))[:1000]
    return [text[:n] for n in range(1, 1001)]


def _nested_runs() -> list[str]:
    """Chains of one repeated character, for which there are tokens of many lengths."""
    return [character * n for character in (" ", "a", "=", "0", "\n", "😀") for n in range(1, 150)]


def _long_candidates() -> list[str]:
    choose = random.Random(2)
    words = " ".join(choose.choice(_WORDS) for _ in range(20_000))
    shared = words[:30_000]
    return ["a" * 65_536, "a" * 65_535 + "b", " " * 65_536, "\u200d" * 20_000, words[:50_000], shared, shared + "!"]


def _controls() -> list[str]:
    plain = [chr(code) for code in (*range(32), *range(127, 160))]
    return [
        *plain,
        *(f"a{c}b" for c in plain),
        *(f"{c}{c}" for c in plain),
        "\0" * 9,
        "\r\n\r\n",
        "a\0",
        "a\0\0",
        "\0a",
    ]


def _quotes() -> list[str]:
    marks = [
        '"',
        "'",
        "\\",
        '\\"',
        "\\n",
        "\\\\",
        "`",
        "“",
        "”",
        '""',
        "\\u0041",
        "{",
        "}",
        "${",
        "%s",
        "<",
        ">",
        "&lt;",
    ]
    return [*marks, *(f"say {m}hi{m}" for m in marks), *(m + n for m, n in product(marks, marks))]


def _twins() -> list[str]:
    words = [
        "café",
        "Ångström",
        "Việt Nam",
        "naïve",
        "Åäö",
        "한국어",
        "が",
        "Ω",
        "ﬁn",
        "Ⅳ",
        "e\u0301\u0323",
        "ｆｕｌｌ",
    ]
    forms = [unicodedata.normalize(form, word) for word in words for form in ("NFC", "NFD", "NFKC", "NFKD")]
    homoglyphs = ["paypal", "pаypal", "раураl", "A", "Α", "А", "K", "\u212a", "µ", "μ"]
    return [*words, *forms, *homoglyphs]


def _emoji() -> list[str]:
    people = ["👩", "👨", "👧", "👦", "🧑", "👮"]
    tones = ["", *(chr(0x1F3FB + n) for n in range(5))]
    signs = ["", "\u200d♀\ufe0f", "\u200d♂", "\u200d💻", "\u200d❤\ufe0f\u200d👨"]
    flags = [chr(0x1F1E6 + a) + chr(0x1F1E6 + b) for a, b in product(range(8), range(8))]
    return [*("".join(parts) for parts in product(people, tones, signs)), *flags, "\u200d", "🏴\U000e0067\U000e007f"]


def _right_to_left() -> list[str]:
    words = ["שלום", "שָׁלוֹם", "مرحبا", "مَرْحَبًا", "العربية", "پارسی", "ירושלים", "لا", "ﷺ"]
    return [*words, *(f"\u202b{w}\u202c" for w in words), *(f"{w} abc {w}" for w in words), "\u200f", "\u200fa"]


def _spaces() -> list[str]:
    words = ["Yes", "No", "東京", "é", "1", "\u00a0", "\u2003", "\u3000", "\t"]
    ends = ["", " ", "  ", "\t", "\n", " \n", "\u00a0"]
    return [before + word + after for before, word, after in product(ends, words, ends)]


def _control_texts() -> list[str]:
    return [shape.format(text) for text in CONTROL_TEXTS for shape in ("{}", "Hi{}", "{}\n", " {}", "{0}{0}", "x {} y")]


def _last_bytes() -> list[str]:
    """Characters that differ only in their last byte, or in their last two."""
    starts = (0xE0, 0x3B0, 0x4E00, 0xAC00, 0x1F600, 0x20000)
    return [chr(start + n) for start in starts for n in range(48)] + [chr(0x4E00 + 64 * n) for n in range(48)]


def _not_utf8() -> list[bytes]:
    choose = random.Random(3)
    alphabet = bytes([0x00, 0x20, 0x61, 0x62, 0x80, 0xBF, 0xC3, 0xA9, 0xE4, 0xF0, 0xFF])
    return [bytes(choose.choice(alphabet) for _ in range(choose.randint(1, 9))) for _ in range(400)]


def _every_byte() -> list[bytes]:
    return [bytes([byte]) for byte in range(256)] + [bytes([byte, byte ^ 0x55]) for byte in range(256)]


def _single() -> list[str]:
    return ["The one and only answer: 東京 (Tōkyō), 42 — “quoted”.\n"]


_MAKERS: Mapping[str, Callable[[], Sequence[str | bytes]]] = {
    "control_characters": _controls,
    "control_texts": _control_texts,
    "emoji_joined": _emoji,
    "every_byte": _every_byte,
    "last_bytes": _last_bytes,
    "long_candidates": _long_candidates,
    "nested_chain": _nested_chain,
    "nested_runs": _nested_runs,
    "not_utf8": _not_utf8,
    "prefix_pairs": _prefix_pairs,
    "quotes": _quotes,
    "right_to_left": _right_to_left,
    "single": _single,
    "spaces": _spaces,
    "twins": _twins,
}
NASTY_SET_NAMES: tuple[str, ...] = tuple(_MAKERS)
