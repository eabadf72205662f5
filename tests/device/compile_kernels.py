"""Compile both kernels to machine code for real GPUs, without one; run in a process of its own, not interpreted.

The interpreter takes much that a compiler refuses (a variable that changes its type in a loop, say), so this is the
half of the truth that it leaves out. Prints one line for each kernel and device.
"""

import inspect
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maskfeed_workers import device_kernels

POINTERS = {
    "slots": "*i64",
    "sets": "*i64",
    "arena_bytes": "*u8",
    "arena_int64": "*i64",
    "token_data": "*u8",
    "cells": "*i64",
    "logits": "*fp32",
}
NUMBERS = {"n_tokens", "history_stride", "first_row", "bits_stride", "row_stride", "width"}
CONSTANTS = {
    "permit": {"N_SPLITS": device_kernels.N_SPLITS, "BLOCK": 256},
    "mask": {"BLOCK": device_kernels.MASK_BLOCK},
}


def main() -> None:
    for capability in map(int, sys.argv[1:]):
        for name, constants in CONSTANTS.items():
            kernel = getattr(device_kernels, name)
            signature = {}
            for parameter in inspect.signature(kernel.fn).parameters:
                if parameter in constants:
                    signature[parameter] = "constexpr"
                else:
                    signature[parameter] = "i32" if parameter in NUMBERS else POINTERS.get(parameter, "*i32")
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            print(name, capability, len(compiled.asm["cubin"]))


if __name__ == "__main__":
    main()
