# SPDX-License-Identifier: Apache-2.0
"""The four invariants of the step, read from the real engine's pages, rows and logits."""

from dataclasses import replace

import pytest
import torch

from vllm_eagle_pangu.step.grow import Drafted
from vllm_eagle_pangu.step.stages import Observer

pytestmark = pytest.mark.engine

TOKENS = 40


@pytest.fixture(scope="module")
def prompt(heldout_prompts):
    """A prompt that crosses a block boundary (block size 128) while it is decoded."""
    return max(heldout_prompts, key=len)[:110]


@pytest.fixture(scope="module")
def default_tree(pair, tree_config_of, shapes):
    return tree_config_of(pair[1], shapes["default"])


def _layers(runner) -> list:
    context = runner.compilation_config.static_forward_context
    return [context[name] for name in sorted(context)]


def _pages(runner, request: int, length: int) -> list[torch.Tensor]:
    """Per layer `[2, length, Hk, K]`: the committed K and V of a request, in position order."""
    block_table = runner.input_batch.block_table[0].block_table.gpu[request]
    positions = torch.arange(length)
    committed = []
    for layer in _layers(runner):
        views = layer.impl.pages(layer, layer.kv_cache)
        block_size = views.key.shape[2]
        block, slot = block_table[positions // block_size].long(), positions % block_size
        committed.append(torch.stack([views.key[block, :, slot], views.value[block, :, slot]]))
    return committed


class Watch(Observer):
    """Calls a function of no argument when a stage begins, and one of a result when it is found."""

    def __init__(self, runner, entered=None, found=None) -> None:
        self.at_stage, self.at_result = entered or {}, found or {}
        runner.stages.observers += (self,)

    def entered(self, stage) -> None:
        self.at_stage.get(stage, lambda: None)()

    def found(self, result) -> None:
        self.at_result.get(type(result), lambda _: None)(result)


def test_isolation_drafting_and_verifying_change_no_committed_page(
    engine, pair, prompt, default_tree
):
    with engine(pair[0], default_tree) as trees:
        runner, seen, steps = trees.runner, {}, []

        def snapshot():
            seen["t"] = int(runner.input_batch.num_computed_tokens_cpu[0])
            seen["pages"] = _pages(runner, 0, seen["t"])
            seen["caches"] = [layer.kv_cache.clone() for layer in _layers(runner)]

        def unchanged_by_verification():
            if runner.in_flight.trees is None:
                return
            for kept, now in zip(seen["pages"], _pages(runner, 0, seen["t"]), strict=True):
                assert torch.equal(kept, now)
            # Beyond the committed slots, verification writes one: the root's.
            for layer, kept in zip(_layers(runner), seen["caches"], strict=True):
                changed = (layer.kv_cache != kept).any(-1).any(1).any(0)
                assert int((layer.kv_cache != kept).any(-1).any(1).any(1).sum()) <= 1, changed
            steps.append(seen["t"])

        def snapshot_caches():
            seen["caches"] = [layer.kv_cache.clone() for layer in _layers(runner)]

        def unchanged_by_drafting(_):
            for layer, kept in zip(_layers(runner), seen["caches"], strict=True):
                assert torch.equal(layer.kv_cache, kept)

        stages = {"verify": snapshot, "draw": unchanged_by_verification, "grow": snapshot_caches}
        Watch(runner, stages, {Drafted: unchanged_by_drafting})
        trees.generate([prompt], max_tokens=TOKENS)
    assert len(steps) > 5


def test_commit_equivalence_pages_equal_those_of_a_prefill_of_the_same_tokens(
    engine, pair, prompt, default_tree
):
    """For every layer of the target and of the drafter."""
    with engine(pair[0], default_tree) as trees:
        runner, pages = trees.runner, {}

        def record():
            # Tokens before this step's: all but the last have K/V in every layer.
            length = int(runner.input_batch.num_tokens_no_spec[0]) - 1
            pages["length"], pages["kv"] = length, _pages(runner, 0, length)

        Watch(runner, {"grow": record})
        tokens = [*prompt, *trees.generate([prompt], max_tokens=TOKENS)[0]]
        decoded = pages.copy()
        length = decoded["length"]
        assert length > len(prompt) + TOKENS // 2
        trees.generate([tokens[: length + 2]], max_tokens=1)
    for layer, (kept, fresh) in enumerate(zip(decoded["kv"], pages["kv"], strict=True)):
        torch.testing.assert_close(
            kept,
            fresh[:, :length],
            atol=2e-4,
            rtol=1e-3,
            msg=lambda m, at=layer: f"layer {at}: {m}",
        )


def test_context_correctness_a_node_has_the_logits_of_its_path_decoded_alone(
    engine, pair, prompt, default_tree
):
    from vllm_eagle_pangu.models.pangu_as_llama import load_target

    with engine(pair[0], default_tree) as trees:
        runner, seen = trees.runner, []

        def record():
            # Between the forward and the draw.
            state, placed = runner.execute_model_state, runner.in_flight
            if state is not None and placed.trees is not None:
                trees = placed.trees
                seen.append((int(trees.prefix_len[0]), trees.tree, state.logits.clone()))

        Watch(runner, {"other": record})
        tokens = [*prompt, *trees.generate([prompt], max_tokens=24)[0]]
    target = load_target(pair[0], torch.float32)
    assert len(seen) > 3
    for prefix, tree, logits in seen:
        parent, node_tokens = tree.parent[0].tolist(), tree.tokens[0].tolist()
        for row in range(1, int(tree.valid[0].sum()), 3):
            path, at = [], row
            while at:
                path.append(node_tokens[at])
                at = parent[at]
            ids = torch.tensor([[*tokens[: prefix + 1], *reversed(path)]])
            with torch.no_grad():
                alone = target(ids).logits[0, -1]
            torch.testing.assert_close(logits[row].float(), alone, atol=2e-3, rtol=1e-3)


def test_padding_contents_of_rejected_draft_rows_change_no_output(
    engine, pair, prompt, default_tree
):
    with engine(pair[0], default_tree) as trees:
        expected = trees.generate([prompt], max_tokens=TOKENS)
        drafts = _record_drafts(trees.runner)
        trees.generate([prompt], max_tokens=TOKENS)
        clean = list(drafts)
        drafts.clear()
        step, poisoned_rows = trees.runner.step, []

        def poisoned(**kwargs):
            rows = step.ops.draft_batch(**kwargs)
            padded = torch.zeros_like(rows.tokens, dtype=torch.bool)
            for request in kwargs["is_tree"].nonzero()[:, 0].tolist():
                start = int(rows.query_start[request])
                live = int(kwargs["paths"].length[request]) + 1
                padded[start + live : int(rows.query_start[request + 1])] = True
            assert (rows.slots[padded] == -1).all()
            rows.tokens[padded] = 17
            rows.hidden_rows[padded] = 1 % kwargs["input_ids"].shape[0]
            poisoned_rows.append(int(padded.sum()))
            return rows

        ops = replace(step.ops, draft_batch=poisoned)
        step.drafter = replace(step.drafter, ops=ops)
        assert trees.generate([prompt], max_tokens=TOKENS) == expected
    assert drafts == clean
    assert sum(poisoned_rows) > 0


def _record_drafts(runner) -> list[list[list[int]]]:
    drafts: list[list[list[int]]] = []

    def record(drafted):
        drafts.extend(trees.tree.tokens.tolist() for trees in drafted.trees)

    Watch(runner, found={Drafted: record})
    return drafts
