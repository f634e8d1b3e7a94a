# SPDX-License-Identifier: Apache-2.0
"""Accepted rows' K/V to pages."""

from collections.abc import Callable

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.kernels.kv_commit.cpu_impl import compile_entry, cpu_commit_slots
from vllm_eagle_pangu.kernels.kv_commit.reference import commit_slots as commit_slots_reference
from vllm_eagle_pangu.kernels.kv_commit.reference import kv_commit

__all__ = ["IMPLEMENTATIONS", "commit_slots", "kv_commit", "prepare"]

IMPLEMENTATIONS = ("reference", "cpp")


def commit_slots(
    paths: AcceptedPaths, linear_slots: torch.Tensor, rows: int, implementation: str = "reference"
) -> torch.Tensor:
    """Page slot of each tree row, -1 for what must not be written: `[B, R] int64`.

    The i-th accepted node takes the slot of the i-th position after the root. Rejected and padding
    rows get -1, and so does the root, whose K/V the forward itself wrote.

    `linear_slots: [B, R] int64`: entry [b, i] is the slot of position t + i; `rows`: R.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
    """
    return _implementation(implementation)(paths, linear_slots, rows)


def prepare(implementation: str) -> None:
    """Make an implementation ready to run, compiling it where needed: at start-up, not mid-request.

    Raises:
        ValueError: `implementation` is not one of `IMPLEMENTATIONS`.
        RuntimeError: it cannot run on this machine; the message says why and what to do.
    """
    if _implementation(implementation) is cpu_commit_slots:
        compile_entry()


def _implementation(name: str) -> Callable[..., torch.Tensor]:
    if name == "reference":
        return commit_slots_reference
    if name == "cpp":
        return cpu_commit_slots
    raise ValueError(
        f"commit_slots: implementation={name!r} is unknown; use one of "
        + ", ".join(map(repr, IMPLEMENTATIONS))
    )
