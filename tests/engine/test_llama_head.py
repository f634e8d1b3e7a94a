# SPDX-License-Identifier: Apache-2.0
"""LlamaHead, operator by operator, computes what the head's own `forward` does."""

from functools import partial

import pytest
import torch

pytestmark = pytest.mark.engine


def test_llama_head_equals_the_forward_of_vllms_head(engine, tiny_pangu, tiny_head, tree_config_of):
    from vllm_eagle_pangu.engine.draft_head import DraftHead
    from vllm_eagle_pangu.engine.llama_head import LlamaHead

    small = {"max_model_len": 256, "max_num_batched_tokens": 64}
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9)), **small) as trees:
        head = trees.runner.draft_head
        assert isinstance(head, LlamaHead)
        # So that committed rows are in passes, too.
        head.rowwise = False
        fast, slow = head.run, partial(DraftHead.run, head)
        compared = []

        def both(tokens, positions, hidden, metadata, slots):
            expected = slow(tokens, positions, hidden.clone(), metadata, slots)
            got = fast(tokens, positions, hidden.clone(), metadata, slots)
            for want, have in zip(expected, got, strict=True):
                torch.testing.assert_close(have, want, atol=1e-4, rtol=1e-3)
            compared.append(slots is None)
            return got

        head.run = both
        trees.generate([[256, 72, 101, 108, 108, 111]], max_tokens=16)
    assert True in compared and False in compared, "extend and level passes must both be compared"
