import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("compile_kernels.py")
VARIANTS = [
    ("permit", "int64-slots"),
    ("permit", "int32-slots"),
    ("mask", "float32"),
    ("mask", "float16"),
    ("mask", "bfloat16"),
]


@pytest.mark.parametrize("targets", [["cuda:80", "cuda:90", "cuda:100"], ["hip:gfx942"]])
def test_every_kernel_compiles_to_machine_code_for_gpus_with_each_type_it_is_given(targets, tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    child = subprocess.run(
        [sys.executable, str(PROGRAM), *targets], capture_output=True, text=True, env=environment, timeout=120
    )
    assert child.returncode == 0, child.stderr[-3000:]
    made = [line.split() for line in child.stdout.splitlines()]
    assert [tuple(line[:3]) for line in made] == [(*variant, target) for target in targets for variant in VARIANTS]
    assert all(int(size) > 0 for *_, size in made)
