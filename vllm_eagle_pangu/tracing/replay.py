# SPDX-License-Identifier: Apache-2.0
"""Runs a failed step again from its dump, in reference mode and without the engine."""

from collections.abc import Iterator
from pathlib import Path

from vllm_eagle_pangu.tracing.cache_invariants import check_cache, check_written_once
from vllm_eagle_pangu.tracing.dumped import Dump, Finding, read_dump
from vllm_eagle_pangu.tracing.path_invariants import check_path
from vllm_eagle_pangu.tracing.tree_invariants import check_tree


def replay(path: str | Path) -> list[Finding]:
    """Every invariant that breaks in the dump, one finding per request and invariant.

    What the dump does not know is not checked; `unchecked` says what that is. Raises
    FileNotFoundError, and ValueError for a file that is no dump.
    """
    return check(read_dump(path))


def check(dump: Dump) -> list[Finding]:
    """As `replay`, of a dump that is read already."""
    findings: list[Finding] = []
    for request in dump.requests:
        findings += [*check_tree(request), *check_path(request), *check_cache(request)]
    return [*findings, *check_written_once(dump.requests)]


def unchecked(dump: Dump) -> Iterator[str]:
    """What was not known of some request, so that its invariants went unchecked."""
    for name in ("tree", "path", "draws", "token_ids", "prefix_len"):
        missing = [one.request for one in dump.requests if getattr(one, name) is None]
        if missing:
            yield f"{name} of {', '.join(missing)}"
    for name in ("linear_slots", "commit_slots", "block_ids"):
        missing = [
            one.request
            for one in dump.requests
            if not one.caches or any(getattr(cache, name) is None for cache in one.caches)
        ]
        if missing:
            yield f"{name} of {', '.join(missing)}"
    yield from dump.unreadable
