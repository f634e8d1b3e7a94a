# SPDX-License-Identifier: Apache-2.0
"""What stands in for vLLM's own parts on a platform when the method is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PlatformParts:
    """Import paths of our classes.

    `worker`: for `parallel_config.worker_cls`.
    `attention`: by name of an `AttentionBackendEnum`, the backend that takes its place.
    `check`: a function of vLLM's finished configuration, still with the platform's own worker and
    scheduler in it, that refuses what only this platform has.
    `graphs`: whether trees run where vLLM captures the target's forward as a graph.
    """

    worker: str
    attention: Mapping[str, str]
    check: str | None = None
    graphs: bool = True
