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


def tiny_model_directory(tokenizer: Path | None = None) -> Path:
    """Two random layers over a tokenizer, SmolLM2's or that of a directory: fast, senseless, and fit for two ranks."""
    directory = cache_directory() / "models" / ("tiny-llama" if tokenizer is None else f"tiny-llama-{tokenizer.name}")
    if not directory.exists():
        script = Path(__file__).with_name("tiny_model.py")
        source = smollm2_directory() if tokenizer is None else tokenizer
        subprocess.run([sys.executable, str(script), str(source), str(directory)], check=True, stdout=sys.stderr)
    return directory
