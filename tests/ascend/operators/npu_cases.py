# SPDX-License-Identifier: Apache-2.0
"""Random cases of tree_attention within the limits of Ascend's operators."""

import random

import torch

from vllm_eagle_pangu.kernels.tree_attention.cases import (
    NPU_SHAPE,
    AttentionCase,
    level_case,
    verify_case,
)


def random_case(draw: random.Random, dtype: torch.dtype) -> AttentionCase:
    """A verify pass or a drafter level of 1 to 5 requests, in pages of 128."""
    requests, kv_heads = draw.randint(1, 5), draw.choice((1, 2, 3))
    longest = draw.choice((5, 140, 300))
    prefixes = tuple(draw.choice((0, 127, 128, draw.randint(0, longest))) for _ in range(requests))
    options = NPU_SHAPE | {
        "heads": kv_heads * draw.randint(1, 4),
        "kv_heads": kv_heads,
        "head_size": draw.choice((64, 128)),
        "gap": draw.choice((0, 0, 2)),
        "dtype": dtype,
    }
    if draw.random() < 0.4:
        width, depth = draw.randint(1, 5), draw.randint(1, 5)
        return level_case("level", prefixes, width, draw.randint(1, depth), depth, **options)
    rows = tuple(draw.randint(1, 24) for _ in range(requests))
    return verify_case("verify", prefixes, rows, **options)
