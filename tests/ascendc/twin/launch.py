# SPDX-License-Identifier: Apache-2.0
"""Launches a compiled kernel on the twin: tiling first, then every core in a given order."""

import ctypes
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch


class TwinViolationError(Exception):
    """The kernel did what the device would not forgive; the text says which access."""


class Role(enum.IntEnum):
    """What the kernel may do with an argument: read, fill completely, or change in place."""

    INPUT = 0
    OUTPUT = 1
    IN_OUT = 2


@dataclass(frozen=True)
class Argument:
    """One kernel argument: a tensor, a list of tensors (a dynamic input), or an alias.

    `alias`: place of the argument that this output is, 0 for the first; it has no tensors then.
    All tensors are contiguous CPU tensors.
    """

    name: str
    tensors: torch.Tensor | Sequence[torch.Tensor] = ()
    role: Role = Role.INPUT
    alias: int = -1


class _Tensor(ctypes.Structure):
    """`TensorArgument` of twin_launch.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("in_list", ctypes.c_int32),
        ("alias", ctypes.c_int32),
    )


class TwinKernel:
    """A kernel with its tiling, as `compile_kernel` makes it."""

    def __init__(self, op: str, library: ctypes.CDLL) -> None:
        self.op = op
        self._library = library
        library.twin_tiling.restype = ctypes.c_char_p
        library.twin_tiling_bytes.restype = ctypes.c_int64
        self.tiling_bytes: int = library.twin_tiling_bytes()

    def tiling(self, shape: Mapping[str, int]) -> bytes:
        """The tiling data for `shape`, whose values stand in the order of the op's Shape struct.

        Raises ValueError with the tiling's own message where it refuses the shape.
        """
        values = (ctypes.c_int64 * len(shape))(*shape.values())
        data = ctypes.create_string_buffer(self.tiling_bytes)
        refusal = self._library.twin_tiling(
            values,
            ctypes.c_int64(len(shape)),
            data,
            ctypes.c_int64(self.tiling_bytes),
        )
        if refusal is not None:
            raise ValueError(refusal.decode())
        return data.raw

    def launch(
        self, arguments: Sequence[Argument], tiling: bytes, order: Sequence[int] | None = None
    ) -> None:
        """Run the cores 0 .. n-1, in `order` where given; outputs are filled in place.

        Raises TwinViolationError at the first violation; outputs are then unchanged.
        """
        cores = core_count(tiling)
        order = range(cores) if order is None else order
        assert sorted(order) == list(range(cores)), (order, cores)
        tensors = _pack(arguments)
        text = ctypes.create_string_buffer(1024)
        failed = self._library.twin_launch(
            (_Tensor * len(tensors))(*tensors),
            ctypes.c_int64(len(tensors)),
            tiling,
            ctypes.c_int64(len(tiling)),
            (ctypes.c_int32 * cores)(*order),
            ctypes.c_int64(cores),
            text,
            ctypes.c_int64(len(text)),
        )
        if failed:
            raise TwinViolationError(f"{self.op}: {text.value.decode()}")


def core_count(tiling: bytes) -> int:
    """Cores to launch: the first field of every op's tiling data."""
    return int.from_bytes(tiling[:4], "little")


def _pack(arguments: Sequence[Argument]) -> list[_Tensor]:
    packed = []
    for place, argument in enumerate(arguments):
        name, role = argument.name.encode(), int(argument.role)
        if argument.alias >= 0:
            packed.append(_Tensor(None, 0, name, role, place, 0, argument.alias))
            continue
        in_list = not isinstance(argument.tensors, torch.Tensor)
        tensors = argument.tensors if in_list else (argument.tensors,)
        for tensor in tensors:
            assert isinstance(tensor, torch.Tensor)
            assert tensor.is_cpu and tensor.is_contiguous(), name
            size = tensor.numel() * tensor.element_size()
            packed.append(_Tensor(tensor.data_ptr(), size, name, role, place, in_list, -1))
    return packed
