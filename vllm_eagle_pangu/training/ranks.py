# SPDX-License-Identifier: Apache-2.0
"""The processes of a torchrun, or the only one: who does what, and where they meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

Made = TypeVar("Made")


@dataclass(frozen=True)
class Ranks:
    """One of the processes; unless `joined` the only one."""

    rank: int = 0
    size: int = 1

    @classmethod
    @contextmanager
    def joined(cls, device: str) -> Iterator[Ranks]:
        """Join the others, if this is a torchrun's process, and leave them at the end."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            yield cls()
            return
        # Others may wait for hours; one that died is seen by the connections that it leaves.
        backend = "nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(backend, timeout=timedelta(days=30))
        try:
            yield cls(dist.get_rank(), dist.get_world_size())
        finally:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def owns(self, index: int) -> bool:
        return index % self.size == self.rank

    def meet(self) -> None:
        """Wait for all. Raises RuntimeError where one has died."""
        if self.size > 1:
            dist.barrier()

    def one_after_first(self, make: Callable[[], Made]) -> Made:
        """What `make` gives from the files that the first rank's call has left."""
        if self.first:
            make()
        self.meet()
        return make()

    def average(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor by its mean over the ranks."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor.div_(self.size)

    def from_first(self, value: float) -> float:
        """The first rank's value, in every rank."""
        shared = [value]
        if self.size > 1:
            dist.broadcast_object_list(shared, 0)
        return shared[0]
