"""The models of the tests, made once and kept in `.cache`: SmolLM2-135M-Instruct, and a tiny one for two ranks."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["cache_directory", "smollm2_directory", "tiny_model_directory"]

_REPOSITORY = Path(__file__).resolve().parents[1]


def cache_directory() -> Path:
    """Where models and tokenizers are kept between runs: `MASKFEED_TEST_CACHE`, else `.cache` of the repository."""
    return Path(os.environ.get("MASKFEED_TEST_CACHE", _REPOSITORY / ".cache"))


def smollm2_directory() -> Path:
    """A Hugging Face model directory; made on first use (about 25 s and a download of 93 MB)."""
    directory = cache_directory() / "models" / "smollm2-135m"
    if not directory.exists():
        # In a process of its own: torch and transformers stay out of this one.
        script = _REPOSITORY / "examples" / "smollm2.py"
        subprocess.run([sys.executable, str(script), str(directory)], check=True, stdout=sys.stderr)
    return directory


def tiny_model_directory() -> Path:
    """SmolLM2's tokenizer over two random layers: fast, senseless, and fit for a tensor-parallel size of 2."""
    directory = cache_directory() / "models" / "tiny-llama"
    if not directory.exists():
        script = Path(__file__).with_name("tiny_model.py")
        subprocess.run([sys.executable, str(script), str(smollm2_directory()), str(directory)], check=True)
    return directory
