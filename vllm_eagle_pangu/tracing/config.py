# SPDX-License-Identifier: Apache-2.0
"""Whether a process is traced, and how much of it."""

import hashlib
from dataclasses import dataclass, replace

from vllm_eagle_pangu import env
from vllm_eagle_pangu.config import DEFAULT_MAX_BYTES, refusal

# Less would not hold the lines of one wide tree.
LEAST_MAX_BYTES = 2**16


@dataclass(frozen=True)
class TraceConfig:
    """Where traces go, which share of the requests is traced, how long the lines of a run may get.

    The keys of a user are `trace_dir`, `trace_sample_rate` and `trace_max_bytes`.

    Raises ValueError for a value of the wrong type or range.
    """

    directory: str
    sample_rate: float = 1.0
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory:
            raise refusal(
                "trace_dir",
                self.directory,
                "must name a folder",
                'set "trace_dir" to a path, or leave it out for no traces',
            )
        rate = self.sample_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise refusal(
                "trace_sample_rate",
                rate,
                "must be a number above 0 and at most 1",
                'set "trace_sample_rate" to the share of requests to trace, such as 0.1',
            )
        size = self.max_bytes
        if isinstance(size, bool) or not isinstance(size, int) or size < LEAST_MAX_BYTES:
            raise refusal(
                "trace_max_bytes",
                size,
                f"must be a whole number, at least {LEAST_MAX_BYTES}",
                f'set "trace_max_bytes" to bytes per run, such as {DEFAULT_MAX_BYTES}',
            )

    def samples(self, request: str) -> bool:
        """Whether the request is traced: by its id alone, so every process says the same."""
        if self.sample_rate >= 1:
            return True
        digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.sample_rate * 2**64


def chosen_trace(
    trace_dir: str | None = None,
    sample_rate: float = 1.0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> TraceConfig | None:
    """What the user's keys and EAGLE_PANGU_TRACE_DIR ask for; the environment wins.

    None where neither asks for traces.
    """
    # A rate or a bound that is wrong is wrong also where nothing is traced.
    said = TraceConfig("." if trace_dir is None else trace_dir, sample_rate, max_bytes)
    directory = env.trace_dir() or trace_dir
    return None if directory is None else replace(said, directory=directory)
