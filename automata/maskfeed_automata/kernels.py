"""What all kernels share: the decorator, array types, bitmaps with ranks, views of memory by address.

A kernel validates nothing: its Python caller does, once, before the first kernel sees an array. Kernels know nothing
of Python objects, hold no state and release the GIL, so any number of threads may run them on shared arrays.

Automata and vocabularies are handed to the step kernels as *rows* of addresses (int64), because a batch spans many
automata and copying them together would cost more than the step. Whoever makes a row keeps the arrays alive for as
long as the row is used. Invariant: an address in a row is the start of a C-contiguous, aligned array.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = [
    "A_BRANCH",
    "A_BRANCH_RANK",
    "A_BYTE",
    "A_CHILD_BYTE",
    "A_CHILD_NODE",
    "A_CHILD_PTR",
    "A_HAS_TEXT_STOP",
    "A_LEAF",
    "A_LIVE",
    "A_MASK_IDS",
    "A_MASK_PTR",
    "A_N_BRANCHES",
    "A_N_NODES",
    "A_N_STOP",
    "A_ROW_LENGTH",
    "A_STOP",
    "A_TERMINAL",
    "BOOL",
    "CELL_BASE_SHIFT",
    "CELL_TOKEN_SHIFT",
    "I32",
    "I64",
    "U8",
    "U32",
    "U64",
    "V_CELLS",
    "V_N_CELLS",
    "V_ROW_LENGTH",
    "V_SIZE",
    "V_TOKEN_DATA",
    "V_TOKEN_OFFSETS",
    "V_TWIN",
    "address_of",
    "bit_at",
    "cell_base",
    "cell_token",
    "i32_view",
    "i64_view",
    "kernel",
    "next_cell",
    "popcount",
    "rank_at",
    "u8_view",
    "u32_view",
    "u64_view",
]

BOOL = NDArray[np.bool_]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

# Columns of an automaton's row: the arrays of `CompiledArrays`, then the stop ids of the request.
A_BYTE: Final = 0
A_LEAF: Final = 1
A_TERMINAL: Final = 2
A_BRANCH: Final = 3
A_BRANCH_RANK: Final = 4
A_CHILD_PTR: Final = 5
A_CHILD_BYTE: Final = 6
A_CHILD_NODE: Final = 7
A_MASK_PTR: Final = 8
A_MASK_IDS: Final = 9
A_LIVE: Final = 10  # 0 when every node is live
A_N_NODES: Final = 11
A_N_BRANCHES: Final = 12
A_STOP: Final = 13
A_N_STOP: Final = 14
A_HAS_TEXT_STOP: Final = 15  # 1 when a stop id has bytes, so that masks may contain it
A_ROW_LENGTH: Final = 16

# Columns of a vocabulary's row: arrays of `TokenizerAutomaton`, then the bytes of the tokens.
V_CELLS: Final = 0
V_N_CELLS: Final = 1
V_TWIN: Final = 2
V_TOKEN_OFFSETS: Final = 3
V_TOKEN_DATA: Final = 4
V_SIZE: Final = 5
V_ROW_LENGTH: Final = 6

# A place in the bytes of tokens is a cell (uint64) of a tokenizer automaton. The cells of a place's children are
# cells[base ^ byte]; no two places have the same base, so the byte of a cell tells whose child it is.
#   bits 0 .. 8    the byte that leads here, plus one; 0: nothing does
#   bits 9 .. 38   base of the children; 0: there are none
#   bits 39 .. 63  the smallest token id whose bytes lead here, plus one; 0: there is none
CELL_BASE_SHIFT: Final = 9
CELL_TOKEN_SHIFT: Final = 39
_MARK: Final = np.uint64((1 << CELL_BASE_SHIFT) - 1)
_BASE: Final = np.uint64((1 << (CELL_TOKEN_SHIFT - CELL_BASE_SHIFT)) - 1)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_POPCOUNT_1: Final = np.uint64(0x5555555555555555)
_POPCOUNT_2: Final = np.uint64(0x3333333333333333)
_POPCOUNT_4: Final = np.uint64(0x0F0F0F0F0F0F0F0F)
_POPCOUNT_SUM: Final = np.uint64(0x0101010101010101)


def kernel(function: _Function) -> _Function:
    """Compile `function` with numba on first use; the machine code is kept beside the module for later processes."""
    return cast("_Function", njit(cache=True, nogil=True)(function))


def address_of(array: NDArray[Any]) -> int:
    """Address of a C-contiguous, aligned array's first element, for a row."""
    assert array.flags.c_contiguous
    assert array.flags.aligned
    return int(array.ctypes.data)


def _pointer_cast(item: Any) -> Any:
    """An intrinsic that turns an int64 address into a pointer to `item`."""

    @intrinsic  # type: ignore[untyped-decorator]
    def cast_address(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(item)(types.int64), generate

    return cast_address


_u8_pointer = _pointer_cast(types.uint8)
_i32_pointer = _pointer_cast(types.int32)
_i64_pointer = _pointer_cast(types.int64)
_u32_pointer = _pointer_cast(types.uint32)
_u64_pointer = _pointer_cast(types.uint64)


@kernel
def u8_view(address: int, length: int) -> U8:
    """uint8 [length] at `address`."""
    return carray(_u8_pointer(address), length)  # type: ignore[no-any-return]


@kernel
def i32_view(address: int, length: int) -> I32:
    """int32 [length] at `address`."""
    return carray(_i32_pointer(address), length)  # type: ignore[no-any-return]


@kernel
def i64_view(address: int, length: int) -> I64:
    """int64 [length] at `address`."""
    return carray(_i64_pointer(address), length)  # type: ignore[no-any-return]


@kernel
def u32_view(address: int, length: int) -> U32:
    """uint32 [length] at `address`."""
    return carray(_u32_pointer(address), length)  # type: ignore[no-any-return]


@kernel
def u64_view(address: int, length: int) -> U64:
    """uint64 [length] at `address`."""
    return carray(_u64_pointer(address), length)  # type: ignore[no-any-return]


@kernel
def bit_at(words: U64, n: int) -> bool:
    """Bit `n` of a bitmap: bit n % 64 of word n // 64."""
    return (words[n >> 6] >> np.uint64(n & 63)) & np.uint64(1) != 0  # type: ignore[no-any-return]


@kernel
def popcount(word: np.uint64) -> int:
    """Number of set bits; LLVM makes one instruction of it."""
    word = word - ((word >> np.uint64(1)) & _POPCOUNT_1)
    word = (word & _POPCOUNT_2) + ((word >> np.uint64(2)) & _POPCOUNT_2)
    word = (word + (word >> np.uint64(4))) & _POPCOUNT_4
    return np.int64((word * _POPCOUNT_SUM) >> np.uint64(56))  # type: ignore[return-value]


@kernel
def rank_at(words: U64, ranks: I32, n: int) -> int:
    """Number of set bits before bit `n`; `ranks[w]` is the number before word w."""
    before: int = ranks[n >> 6]
    below = words[n >> 6] & ((np.uint64(1) << np.uint64(n & 63)) - np.uint64(1))
    return before + popcount(below)


@kernel
def next_cell(cells: U64, base: np.uint64, byte: int) -> np.uint64:
    """The cell to which `byte` leads from the place with this `base`, or 0."""
    cell: np.uint64 = cells[base ^ np.uint64(byte)]
    return cell if cell & _MARK == np.uint64(byte) + np.uint64(1) else np.uint64(0)


@kernel
def cell_base(cell: np.uint64) -> np.uint64:
    """Base of the cells below a cell; 0 if nothing is below."""
    return (cell >> np.uint64(CELL_BASE_SHIFT)) & _BASE


@kernel
def cell_token(cell: np.uint64) -> int:
    """The smallest token id whose bytes lead to a cell, or -1."""
    return np.int32(cell >> np.uint64(CELL_TOKEN_SHIFT)) - np.int32(1)  # type: ignore[return-value]
