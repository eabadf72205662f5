import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("compile_kernels.py")


def test_both_kernels_compile_to_machine_code_for_three_generations_of_gpus(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    child = subprocess.run(
        [sys.executable, str(PROGRAM), "80", "90", "100"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert child.returncode == 0, child.stderr[-3000:]
    made = [line.split() for line in child.stdout.splitlines()]
    expected = [(n, c) for c in ("80", "90", "100") for n in ("permit", "mask")]
    assert [(name, capability) for name, capability, _ in made] == expected
    assert all(int(size) > 0 for _, _, size in made)
