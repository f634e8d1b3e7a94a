# SPDX-License-Identifier: Apache-2.0
"""A host twin of AscendC: our op_kernel/*.cpp compiled with g++ and run core by core, checked."""

from .compiler import compile_kernel
from .launch import Argument, TwinKernel, TwinViolationError

__all__ = ["Argument", "TwinKernel", "TwinViolationError", "compile_kernel"]
