"""What the tests of this folder share."""

import pytest

from maskfeed_automata import Vocabulary
from model_files import tiny_model_directory


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Of the tiny model."""
    return Vocabulary.from_tokenizer(tiny_model_directory())
