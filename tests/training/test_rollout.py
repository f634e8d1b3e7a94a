# SPDX-License-Identifier: Apache-2.0
"""The rollout of all anchors at once, against drafting from one anchor with a growing cache."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from vllm_eagle_pangu.training.head import EagleHead, RolloutKeys
from vllm_eagle_pangu.training.hidden_states import PackedBatch
from vllm_eagle_pangu.training.train_head import rollout

from .prepared import tiny_shape

SHAPE = tiny_shape((1, 2))


@pytest.fixture
def head() -> EagleHead:
    torch.manual_seed(0)
    head = EagleHead(SHAPE, torch.arange(31)).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head


class NaiveDrafter:
    """The head with an ordinary growing KV cache, one row at a time, as vLLM runs it."""

    def __init__(self, head: EagleHead) -> None:
        self.head, self.layer = head, head.midlayer
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def step(self, embed: torch.Tensor, hidden: torch.Tensor, position: int) -> torch.Tensor:
        attention = self.layer.self_attn
        rows = torch.cat([self.layer.input_layernorm(embed), self.layer.hidden_norm(hidden)])
        rotary = self.head.rotary(rows, torch.tensor([[position]]))

        def split(linear: torch.nn.Linear) -> torch.Tensor:
            return linear(rows).view(1, -1, 1, SHAPE.head_dim)

        turned = apply_rotary_pos_emb(split(attention.q_proj), split(attention.k_proj), *rotary)
        query = turned[0][0, :, 0]
        self.keys.append(turned[1][0, :, 0])
        self.values.append(split(attention.v_proj)[0, :, 0])
        mixed = []
        for index in range(SHAPE.num_attention_heads):
            group = index * SHAPE.num_key_value_heads // SHAPE.num_attention_heads
            keys = torch.stack([key[group] for key in self.keys])
            values = torch.stack([value[group] for value in self.values])
            weights = torch.softmax(keys @ query[index] / SHAPE.head_dim**0.5, dim=0)
            mixed.append(weights @ values)
        residual = hidden + attention.o_proj(torch.cat(mixed))
        return residual + self.layer.mlp(self.layer.post_attention_layernorm(residual))


@pytest.mark.parametrize("anchors", [1, 7])
def test_rollout_equals_drafting_from_each_anchor_with_a_cache(head, anchors):
    steps = 4
    embeds = torch.randn(2, anchors + steps, 32, dtype=torch.float64)
    context = torch.randn(2, anchors, 32, dtype=torch.float64)
    states, hidden, past = [], context, RolloutKeys.over(torch.zeros(2, anchors))
    for step in range(steps):
        positions = torch.arange(step, step + anchors)
        hidden, _, past = head(embeds[:, step : step + anchors], hidden, positions, past)
        states.append(hidden)
    for row in range(2):
        for anchor in range(anchors):
            drafter = NaiveDrafter(head)
            for place in range(anchor + 1):
                state = drafter.step(embeds[row, place], context[row, place], place)
            for step in range(steps):
                if step:
                    state = drafter.step(embeds[row, anchor + step], state, anchor + step)
                torch.testing.assert_close(states[step][row, anchor], state)


class Embeds:
    """Of a `Teacher` what a rollout asks for."""

    def __init__(self) -> None:
        self.embedding = torch.nn.Embedding(63, 32).double()


def test_rollout_of_masks_equals_drafting_behind_each_anchor_from_masked_rows():
    """As vLLM's parallel drafting lays them out: the root, and behind it one mask a position."""
    torch.manual_seed(0)
    steps, anchors, shape = 4, 5, tiny_shape((1, 2), parallel=True)
    head, teacher = EagleHead(shape, torch.arange(31)).double(), Embeds()
    tokens = torch.randint(0, 62, (1, anchors + steps + 1))
    states = torch.randn(1, anchors + steps + 1, 3, 32, dtype=torch.float64)
    nothing = torch.zeros_like(tokens)
    batch = PackedBatch(tokens, nothing, nothing.bool(), states)
    found = list(rollout(head, teacher, batch, steps))
    embeds = teacher.embedding(tokens)[0]
    mask = teacher.embedding(torch.tensor(shape.ptd_token_id)), head.fc(head.mask_hidden)
    for anchor in range(anchors):
        drafter = NaiveDrafter(head)
        for place in range(anchor + 1):
            context = head.fc(states[0, place, :-1].flatten())
            state = drafter.step(embeds[place + 1], context, place)
        for step in range(steps):
            if step:
                state = drafter.step(*mask, anchor + step)
            torch.testing.assert_close(found[step][0, anchor], head.norm(state))


def test_later_rollout_steps_do_not_leak_between_anchors(head):
    embeds = torch.randn(1, 8, 32, dtype=torch.float64)
    context = torch.randn(1, 6, 32, dtype=torch.float64)

    def second_states(changed: torch.Tensor) -> torch.Tensor:
        empty = RolloutKeys.over(torch.zeros(1, 6))
        first, _, past = head(embeds[:, :6], changed, torch.arange(6), empty)
        return head(embeds[:, 1:7], first, torch.arange(1, 7), past)[0]

    changed = context.clone()
    changed[:, 4] += 1.0
    before, after = second_states(context), second_states(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])
