"""The checked processor, with a rank 1 whose loads stop where a test wants them to.

A load of the artifact H stops before its end while the folder of the comparison holds a FIFO named `stuck-H`; it goes
on once somebody has opened the FIFO for writing and closed it again.
"""

import os
from pathlib import Path

from vllm.distributed.parallel_state import get_tp_group

from divergence import FOLDER_VARIABLE, CheckedProcessor
from maskfeed_workers.shared_files import SharedFiles

__all__ = ["StuckProcessor"]


class StuckProcessor(CheckedProcessor):
    """For `--logits-processors stuck_rank:StuckProcessor`."""

    def __init__(self, *args):
        if get_tp_group().rank_in_group == 1:
            folder, real = Path(os.environ[FOLDER_VARIABLE]), SharedFiles.load

            def load_unless_stuck(files, artifact_hash, *args, **options):
                buffer = real(files, artifact_hash, *args, **options)
                gate = folder / f"stuck-{artifact_hash}"
                if gate.exists():
                    gate.read_bytes()
                return buffer

            SharedFiles.load = load_unless_stuck
        super().__init__(*args)
