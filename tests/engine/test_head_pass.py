# SPDX-License-Identifier: Apache-2.0
"""HeadPass, operator by operator, computes what the head's own `forward` does."""

import pytest
import torch

pytestmark = pytest.mark.engine


def test_head_pass_equals_the_forward_of_vllms_head(engine, tiny_pangu, tiny_head, tree_config_of):
    from vllm_eagle_pangu.engine.head_pass import HeadPass, Pass

    small = {"max_model_len": 256, "max_num_batched_tokens": 64}
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9)), **small) as trees:
        head = trees.runner.draft_head
        fast = head.run
        assert isinstance(fast, HeadPass)
        layers = [layer.layer_name for layer in head.layers]
        slow = Pass(head.model, head.proposer.vllm_config, layers)
        compared = []

        class Both:
            logits = staticmethod(fast.logits)

            def __call__(self, tokens, positions, hidden, metadata, slots):
                expected = slow(tokens, positions, hidden.clone(), metadata, slots)
                got = fast(tokens, positions, hidden.clone(), metadata, slots)
                for want, have in zip(expected, got, strict=True):
                    torch.testing.assert_close(have, want, atol=1e-4, rtol=1e-3)
                compared.append(slots is None)
                return got

        head.run = Both()
        trees.generate([[256, 72, 101, 108, 108, 111]], max_tokens=16)
    assert True in compared and False in compared, "extend and level passes must both be compared"
