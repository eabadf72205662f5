"""Candidates that look alike, and characters that do not show."""

import pytest

from maskfeed.oddities import MOST_FOR_ONE_EDIT, almost_equal, near_duplicates, odd_characters


def test_near_duplicates_are_grouped_by_what_tells_them_apart():
    names = ["Paris", "paris", "Paris ", "x  y", "x y", "x\u00a0y", "caf\u00e9", "cafe\u0301", "PARIS", "Paris"]
    assert near_duplicates(names) == {
        "whitespace": [(0, 2), (3, 4, 5)],
        "unicode-form": [(6, 7)],
        "case": [(0, 1, 8)],
        "one-edit": [],
    }


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ("Springfield", "Sprinfield", True),
        ("Springfield", "Springfields", True),
        ("Springfield", "Sprongfield", True),
        ("Springfield", "Sprignfield", False),
        ("item 1", "item 2", False),
        ("item 1", "item 12", False),
        ("cat", "car", False),
        ("Colour", "colour", False),
    ],
)
def test_one_edit_is_one_character_that_is_no_digit(a, b, found):
    assert near_duplicates([a, b, "something else"])["one-edit"] == ([(0, 1)] if found else [])


def test_pairs_are_looked_for_in_small_lists_only():
    many = [f"number {k}" for k in range(MOST_FOR_ONE_EDIT)]
    assert near_duplicates([*many[2:], "names", "name s"])["one-edit"] != []
    assert near_duplicates([*many, "names", "name s"])["one-edit"] == []


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Paris", []),
        ("a b c", []),
        (" a", ["leading-space"]),
        ("a ", ["trailing-space"]),
        ("a  b", ["double-space"]),
        ("a\u00a0b", ["other-space"]),
        ("a\u2009b", ["other-space"]),
        ("a\u200bb", ["zero-width"]),
        ("\ufeffa", ["zero-width"]),
        ("a\u00adb", ["zero-width"]),
        ("👩\u200d👧", []),
        ("\u0646\u0645\u06cc\u200c\u062e\u0648", []),
        ("a\u200d", ["zero-width"]),
        ("a\u200c b", ["zero-width"]),
        ("a\tb", ["control"]),
        ("a\n", ["trailing-space", "control"]),
        ("a\0b", ["control"]),
        ("a\u202eb", ["direction"]),
        ("", []),
    ],
)
def test_what_does_not_show_is_named(text, kinds):
    assert odd_characters(text) == kinds


def test_what_a_text_may_have_been_meant_to_be():
    names = ["Paris", "paris", "Paris ", "London"]
    assert almost_equal("Paris", names) == [(1, "case"), (2, "whitespace")]
    assert almost_equal("Rome", names) == []
