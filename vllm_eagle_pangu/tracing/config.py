# SPDX-License-Identifier: Apache-2.0
"""Whether a process is traced, and how much of it."""

import hashlib
from dataclasses import dataclass

from vllm_eagle_pangu.config import DEFAULT_MAX_BYTES


@dataclass(frozen=True)
class TraceConfig:
    """Where traces go, which share of the requests is traced, how long the lines of a run may get.

    The user's keys `trace_dir`, `trace_sample_rate` and `trace_max_bytes`, which TreeConfig checks.
    """

    directory: str
    sample_rate: float = 1.0
    max_bytes: int = DEFAULT_MAX_BYTES

    def samples(self, request: str) -> bool:
        """Whether the request is traced: by its id alone, so every process says the same."""
        if self.sample_rate >= 1:
            return True
        digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.sample_rate * 2**64
