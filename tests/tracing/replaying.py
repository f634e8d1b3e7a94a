# SPDX-License-Identifier: Apache-2.0
"""Dumping a step with a planted fault in one request, and replaying it."""

import argparse
from pathlib import Path

import torch

from vllm_eagle_pangu.kernels.kv_commit.reference import commit_slots
from vllm_eagle_pangu.tracing import command
from vllm_eagle_pangu.tracing.dump import FailedStep, write_dump
from vllm_eagle_pangu.tracing.dumped import Finding, read_dump
from vllm_eagle_pangu.tracing.replay import check

# Of the two requests of a step, the one with the fault.
FAULTY, OTHER = 1, 0


def dumped(folder: Path, failed: FailedStep, error: Exception | None = None) -> Path:
    path = write_dump(folder, error or RuntimeError("planted"), failed)
    assert path is not None
    return path


def replay(path: Path) -> list[Finding]:
    """What breaks in the dump at `path`."""
    return check(read_dump(path))


def findings_by_name(path: Path) -> dict[str, Finding]:
    """All of them are of the faulty request."""
    found = {finding.invariant: finding for finding in replay(path)}
    assert {finding.request for finding in found.values()} <= {f"request-{FAULTY}"}
    return found


def run_command(path: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(path), *options]))


def accepted_rows(failed: FailedStep) -> list[int]:
    return failed.path.rows[FAULTY, 1 : int(failed.path.length[FAULTY]) + 1].tolist()


def cache_slots(failed: FailedStep) -> torch.Tensor:
    return commit_slots(failed.path.rows, failed.caches[0].linear_slots)
