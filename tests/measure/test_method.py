# SPDX-License-Identifier: Apache-2.0
"""Names of methods, and whose turn it is."""

import pytest
import torch
from safetensors.torch import save_file

from vllm_eagle_pangu.bench.figures import COLORS
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.measure.method import (
    PLAIN,
    Method,
    adaptive,
    chain,
    own_chain,
    scheduled_chain,
    tree,
)
from vllm_eagle_pangu.measure.turns import turns


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (PLAIN, "plain"),
        (chain(3), "chain-3"),
        (own_chain(3), "own-chain-3"),
        (tree((4, 5, 16)), "tree-4-5-16"),
        (tree((4, 5, 16), 64), "tree-4-5-16-window-64"),
        (adaptive((4, 5, 16)), "adaptive-4-5-16"),
        (scheduled_chain(((1, 4, 3), (5, 16, 1))), "scheduled-chain-3"),
    ],
)
def test_records_and_tables_of_earlier_runs_are_found_by_these_names(method, name):
    assert method.name == name
    assert name.partition("-")[0] in COLORS, "the bench draws it"


def test_a_shape_one_wide_is_a_chain_and_a_tree_without_a_shape_has_the_defaults():
    assert own_chain(3).shape == TreeShape(1, 3, 3)
    assert tree(TreeShape(2, 3, 6)) == tree((2, 3, 6))
    assert Method("tree", 12).speculative_config("H") == {
        "method": "eagle_pangu",
        "model": "H",
        "num_speculative_tokens": 12,
    }


def test_what_follows_the_batch_is_said_in_the_keys_of_its_drafter():
    shape = {"num_speculative_tokens": 16, "tree_width": 4, "tree_depth": 5}
    assert adaptive((4, 5, 16)).speculative_config("H") == {
        "method": "eagle_pangu",
        "model": "H",
        "tree_policy": "adaptive",
        **shape,
    }
    assert scheduled_chain(((1, 4, 3), (5, 16, 1))).speculative_config("H") == {
        "method": "eagle3",
        "model": "H",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 16, 1]],
    }


def test_vllms_chains_of_a_head_that_drafts_all_levels_at_once_are_drafted_so(tmp_path):
    save_file({"mask_hidden": torch.zeros(1, 8)}, tmp_path / "model.safetensors")
    assert chain(3).speculative_config(str(tmp_path))["parallel_drafting"] is True
    assert "parallel_drafting" not in tree((4, 5, 16)).speculative_config(str(tmp_path))


def test_all_take_a_block_before_the_next_one_comes_and_who_begins_changes():
    seen = [(repeat, block, "".join(order)) for repeat, block, order in turns("xy", "ab", 2)]
    assert seen == [(0, "a", "xy"), (0, "b", "yx"), (1, "a", "yx"), (1, "b", "xy")]
