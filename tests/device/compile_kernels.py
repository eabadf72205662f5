"""Compile the kernels to machine code for real GPUs, without one; run in a process of its own, not interpreted.

The interpreter takes much that a compiler refuses (a variable that changes its type in a loop, say), so this is the
half of the truth that it leaves out. Prints one line for each kernel, each set of types and each device.
Arguments: targets, `cuda:90` or `hip:gfx942`.
"""

import inspect
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maskfeed_workers import device_kernels

# As vLLM's V2 runner has them; everything else is int32.
POINTERS = {
    "slots": "*i64",
    "sets": "*i64",
    "arena_bytes": "*u8",
    "arena_int64": "*i64",
    "token_data": "*u8",
    "cells": "*i64",
    "row_slot": "*i64",
    "logits": "*fp32",
}
NUMBERS = {"n_tokens", "history_stride", "first_row", "bits_stride", "row_stride", "width"}
CONSTANTS = {
    "permit": {"N_SPLITS": device_kernels.N_SPLITS, "BLOCK": 256},
    "mask": {"BLOCK": device_kernels.MASK_BLOCK},
}
# What tells one line from another, and the pointers that are of another type in it.
VARIANTS = [
    ("permit", "int64-slots", {}),
    ("permit", "int32-slots", {"row_slot": "*i32"}),
    ("mask", "float32", {}),
    ("mask", "float16", {"logits": "*fp16"}),
    ("mask", "bfloat16", {"logits": "*bf16"}),
]


def main() -> None:
    exported = {name: getattr(device_kernels, name) for name in device_kernels.__all__}
    kernels = {name: value for name, value in exported.items() if isinstance(value, triton.JITFunction)}
    assert kernels.keys() == {name for name, _, _ in VARIANTS}, "a kernel is not tried"
    for target in sys.argv[1:]:
        backend, architecture = target.split(":")
        for name, variant, others in VARIANTS:
            source = _source(kernels[name], CONSTANTS[name], POINTERS | others)
            gpu = GPUTarget("cuda", int(architecture), 32) if backend == "cuda" else GPUTarget("hip", architecture, 64)
            compiled = triton.compile(source, target=gpu)
            print(name, variant, target, len(compiled.asm["cubin" if backend == "cuda" else "hsaco"]))


def _source(kernel: triton.JITFunction, constants: dict[str, int], pointers: dict[str, str]) -> ASTSource:
    signature = {}
    for parameter in inspect.signature(kernel.fn).parameters:
        if parameter in constants:
            signature[parameter] = "constexpr"
        else:
            signature[parameter] = "i32" if parameter in NUMBERS else pointers.get(parameter, "*i32")
    return ASTSource(fn=kernel, signature=signature, constexprs=constants)


if __name__ == "__main__":
    main()
