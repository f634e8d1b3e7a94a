# SPDX-License-Identifier: Apache-2.0
"""Verify: who attends whom in the target's forward, which is vLLM's own."""

from vllm_eagle_pangu.step.place import Placed
from vllm_eagle_pangu.step.rows import VerifyRows


def verify_rows(placed: Placed) -> dict[int, VerifyRows]:
    """By KV cache group, the trees as its layers attend them; empty without trees."""
    trees = placed.trees
    if trees is None:
        return {}
    first_row, counts, prefix = trees.first_row.int(), trees.counts.int(), trees.prefix_len.int()
    return {
        group: VerifyRows(
            block_table=table.index_select(0, trees.requests),
            prefix_len=prefix,
            query_start=first_row,
            query_count=counts,
            key_start=first_row,
            key_count=counts,
            visible=trees.tree.visible,
            covers_batch=placed.covers_batch,
            batch_rows=trees.batch_rows,
        )
        for group, table in placed.view.block_tables.items()
    }
