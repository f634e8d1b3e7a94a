# SPDX-License-Identifier: Apache-2.0
"""How far back the drafter looks: the distance to each head's strongest key, teacher-forced."""

from pathlib import Path
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.reference.drafter import EMBEDDING, ReferenceDrafter
from vllm_eagle_pangu.training.hidden_states import Teacher


class WatchedDrafter(ReferenceDrafter):
    """The oracle's head, for whole texts at once, as far as the attention weights."""

    # tokens: [N + 1], hidden: [N, H] -> [heads, N]
    def strongest_key_distances(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Of each row, position less the position of the key that it weighs most, per head.

        Row n holds the hidden state of position n and the token after it; it sees rows 0 to n.
        """
        embedded = self._norm("midlayer.input_layernorm", self._weights[EMBEDDING][tokens[1:]])
        x = torch.cat([embedded, self._norm("midlayer.hidden_norm", hidden)], dim=-1)
        rows, size = len(x), self.config.head_dim
        query, key = (
            self._linear(f"midlayer.self_attn.{name}_proj", x).view(1, rows, -1, size)
            for name in "qk"
        )
        cos, sin = self._rotary(x, torch.arange(rows)[None])
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query @ key.mT)[0]
        future = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        strongest = scores.masked_fill(future, float("-inf")).argmax(-1)
        return torch.arange(rows) - strongest


@torch.inference_mode()
def distances(target: Path, head: Path, texts: list[list[int]]) -> torch.Tensor:
    """Distances over all texts, [heads * rows of all texts].

    Raises ValueError for a target or a head that torch alone cannot run.
    """
    model: Any = load_target(target, torch.float32)
    embedding = model.get_input_embeddings().weight
    drafter = WatchedDrafter(head, embedding, model.get_output_embeddings().weight)
    layers = model.config.num_hidden_layers
    # vLLM's default where a head does not name its taps.
    teacher = Teacher(model, drafter.taps or (2, layers // 2, layers - 3))
    found = []
    for text in texts:
        if len(text) > 1:
            tokens = torch.tensor(text)
            taps = teacher.read(tokens[None])[0, :-1, :-1].flatten(1)
            found.append(drafter.strongest_key_distances(tokens, drafter.combine(taps)).flatten())
    return torch.cat(found)


def distance_rows(found: torch.Tensor) -> list[dict[str, Any]]:
    """A histogram whose bins double: 0, 1, 2-3, 4-7, ..."""
    rows = []
    low, high = 0, 1
    while low <= int(found.max()):
        inside = ((found >= low) & (found < high)).float().mean().item()
        within = (found < high).float().mean().item()
        rows.append({"from": low, "to": high - 1, "share": inside, "share_up_to": within})
        low, high = high, 2 * high
    return rows
