# SPDX-License-Identifier: Apache-2.0
import weakref

import torch

from vllm_eagle_pangu.kernels.indices import constant, held

CPU = torch.device("cpu")


def test_what_is_asked_for_while_constants_are_held_outlives_the_cache():
    """Else a CUDA graph would read what is somebody else's by then."""

    @constant(maxsize=2)
    def ones(size: int, device: torch.device) -> torch.Tensor:
        return torch.ones(size, device=device)

    made_before = weakref.ref(ones(1, CPU))
    forgotten = weakref.ref(ones(2, CPU))
    with held() as outer, held() as inner:
        made_within = weakref.ref(ones(3, CPU))
        assert made_before() is None
        asked_again = weakref.ref(ones(2, CPU))
        assert asked_again() is forgotten()
    for size in range(10, 14):
        ones(size, CPU)
    assert [made_within().tolist(), asked_again().tolist()] == [[1.0] * 3, [1.0] * 2]
    assert len(outer) == len(inner) == 2
    del outer, inner
    assert made_within() is None and asked_again() is None
