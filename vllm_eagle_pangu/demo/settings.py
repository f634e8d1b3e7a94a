# SPDX-License-Identifier: Apache-2.0
"""What the demo runs, and the server settings that every method shares."""

import functools
import os

from vllm_eagle_pangu.serving import needs

PROMPTS = 10
TOKENS = 128
REPEATS = 3
NODES = 16
CHAIN_LENGTHS = (1, 2, 3, 4, 5, 6)
# The sweep only ranks the chain lengths; the winner is then measured like the others.
SWEEP_PROMPTS = 4

SERVED_NAME = "demo"

_SERVER_FLAGS = (
    "--dtype=bfloat16",
    "--max-model-len=1024",
    "--max-num-seqs=4",
    # 128 MiB: a few servers stand beside each other, so that measurements can be interleaved.
    "--kv-cache-memory-bytes=134217728",
    # A repeated prompt is then as much work as the first time.
    "--no-enable-prefix-caching",
    # On any number of cores, so that every machine's demo measures the same.
    *needs.ONE_PROCESS_FLAGS,
    # What rounding is measured in, decoding and prefilling alike.
    "--logprobs-mode=raw_logits",
)


# On two cores compiling would take longer than the whole demo.
_CPU_FLAGS = ("--enforce-eager",)
# Servers side by side; a GPU's plain decoding needs its CUDA graphs to be no weakened baseline.
_GPU_FLAGS = ("--gpu-memory-utilization=0.25",)


@functools.cache
def server_flags() -> tuple[str, ...]:
    """The same for every method, by the device of this machine."""
    import torch

    return _SERVER_FLAGS + (_GPU_FLAGS if torch.cuda.is_available() else _CPU_FLAGS)


def server_environment() -> dict[str, str]:
    """What is set for every server on top of the caller's environment."""
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        **needs.ONE_PROCESS,
        **needs.preload(os.environ),
    }
