# SPDX-License-Identifier: Apache-2.0
"""What makes a run safe to kill, and to share: files that are whole or not there, and of known
inputs; the processes of a torchrun, or the only one: who does what, and where they meet.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vllm_eagle_pangu.config import refusal

INPUTS_FILE = "inputs.json"

Made = TypeVar("Made")


@dataclass(frozen=True)
class Ranks:
    """One of the processes; unless `joined` the only one."""

    rank: int = 0
    size: int = 1

    @classmethod
    @contextmanager
    def joined(cls, device: str) -> Iterator["Ranks"]:
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

    def share(self, items: Iterable[Made]) -> Iterator[Made]:
        """What of `items` is this rank's to do."""
        return islice(items, self.rank, None, self.size)

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


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A partial file, which takes the place of `path` when the block has written it.

    Raises ValueError where the disk does not take it, and leaves what was there. safetensors'
    `save_file` writes to a file of its own beside it, which stays where it is killed: use `save`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        yield partial
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's, too
        mend = "make room, and run the same command"
        raise refusal("run_dir", str(path), str(error), mend) from error
    finally:
        partial.unlink(missing_ok=True)


def check_inputs(folder: Path, inputs: dict[str, Any], ranks: Ranks) -> None:
    """Keep what a folder is prepared from, or compare with it; the first rank for all.

    Raises ValueError where the folder was prepared from something else.
    """
    if ranks.first:
        path, now = folder / INPUTS_FILE, json.dumps(inputs, indent=1, sort_keys=True)
        if not path.exists():
            with whole_file(path) as partial:
                partial.write_text(now)
        before = json.loads(path.read_text())
        for key, value in json.loads(now).items():
            if before.get(key) != value:
                problem = f"was prepared with another {key}: {before.get(key)!r}"
                mend = "name another run_dir, or remove this folder"
                raise refusal("run_dir", str(folder), problem, mend)
    ranks.meet()
