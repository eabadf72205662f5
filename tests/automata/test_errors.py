"""The drawing of the error tree is the error tree."""

import inspect
import pickle
import re

import pytest

from maskfeed_automata import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


def drawn_tree() -> dict[str, str | None]:
    """Class -> parent, as drawn in the module's docstring (four columns a level)."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ((?:[│ ]   )*)(?:[├└]── )?(\w+)(?:  |$)", line)
        if match and match[2] in errors.__all__:
            depth = line.index(match[2]) // 4 - 1
            del path[depth:]
            parents[match[2]] = path[-1] if path else None
            path.append(match[2])
    return parents


def test_the_drawing_shows_every_class_under_its_parent():
    actual = {cls.__name__: None if cls is errors.MaskfeedError else cls.__base__.__name__ for cls in CLASSES}
    assert drawn_tree() == actual


def test_every_error_is_exported_sorted_and_documented():
    defined = [name for name, item in vars(errors).items() if inspect.isclass(item) and issubclass(item, Exception)]
    assert sorted(defined) == errors.__all__
    assert all(cls.__doc__ for cls in CLASSES)


def test_codes_are_stable_names_and_unique():
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_an_error_carries_its_numbers():
    error = errors.LimitExceeded("too many", limit=3, value=4)
    assert (str(error), error.message, dict(error.context)) == ("too many", "too many", {"limit": 3, "value": 4})
    with pytest.raises(TypeError):
        error.context["limit"] = 5


def test_an_error_crosses_processes_with_its_message_and_its_numbers():
    error = errors.LimitExceeded("too many", limit=3, value=4, unit="candidates", index=2)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.LimitExceeded
    assert (again.message, dict(again.context), str(again)) == (error.message, dict(error.context), "too many")
