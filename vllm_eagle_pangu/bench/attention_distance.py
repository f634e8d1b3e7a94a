# SPDX-License-Identifier: Apache-2.0
"""How far back the drafter looks: the distance to each head's strongest key, teacher-forced."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, rms_norm
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training.head import DraftLayer
from vllm_eagle_pangu.training.hidden_states import Teacher


class WatchedHead:
    """An EAGLE-3 head in float32, for whole texts at once, as far as the attention weights.

    What its config says of norms before the layer is read off its weights, which an engine has
    compared with it. Without an embedding of its own it has the target's.

    Raises:
        ValueError: the folder holds no safetensors, or a head of more than one layer.
        RuntimeError: the layer's weights are not those of its config.
    """

    def __init__(self, folder: Path, target_embedding: torch.Tensor) -> None:
        self.config = LlamaConfig.from_pretrained(folder)
        if self.config.num_hidden_layers != 1:
            raise ValueError(
                f"{folder}: num_hidden_layers={self.config.num_hidden_layers}: "
                "attention is watched in EAGLE-3 heads of one layer only"
            )
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError(f"{folder}: no *.safetensors file; convert the head to safetensors")
        stored = {name: weight for file in files for name, weight in load_file(file).items()}
        # In float32, and by vLLM's names.
        self._weights = {n.replace("layers.0.", "midlayer."): w.float() for n, w in stored.items()}
        self._embedding = self._weights.get("embed_tokens.weight", target_embedding)
        prefix = "midlayer."
        own = {n.removeprefix(prefix): w for n, w in self._weights.items() if n.startswith(prefix)}
        self._layer, self._rotary = DraftLayer(self.config), LlamaRotaryEmbedding(self.config)
        self._layer.load_state_dict(own)

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose inputs the head reads; empty where the folder does not say."""
        name = "eagle_aux_hidden_state_layer_ids"
        nested = getattr(self.config, "eagle_config", None) or {}
        return tuple(getattr(self.config, name, None) or nested.get(name) or ())

    def combine(self, taps: torch.Tensor) -> torch.Tensor:
        """Target states -> head width: `[N, taps*H_t] -> [N, H]`."""
        for norm in ("input_norm.", "fc_norm."):
            weights = [w for name, w in sorted(self._weights.items()) if name.startswith(norm)]
            if weights:
                parts = zip(taps.chunk(len(weights), dim=-1), weights, strict=True)
                eps = self.config.rms_norm_eps
                taps = torch.cat([rms_norm(part, w.shape, w, eps) for part, w in parts], dim=-1)
        return linear(taps, self._weights["fc.weight"]) if "fc.weight" in self._weights else taps

    # tokens: [N + 1], hidden: [N, H] -> [heads, N]
    def strongest_key_distances(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Of each row, position less the position of the key that it weighs most, per head.

        Row n holds the hidden state of position n and the token after it; it sees rows 0 to n.
        """
        places = torch.arange(len(hidden))
        rotary = self._rotary(hidden, places[None])
        embeds = self._embedding[tokens[1:]]
        query, key, _ = self._layer.projected(embeds[None], hidden[None], rotary)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query @ key.mT)[0]
        return places - scores.masked_fill(places > places[:, None], float("-inf")).argmax(-1)


@torch.inference_mode()
def distances(target: Path, head: Path, texts: list[list[int]]) -> torch.Tensor:
    """Distances over all texts, [heads * rows of all texts].

    Raises ValueError or RuntimeError for a target or a head that torch alone cannot run.
    """
    model: Any = load_target(target, torch.float32)
    watched = WatchedHead(head, model.get_input_embeddings().weight)
    layers = model.config.num_hidden_layers
    # vLLM's default where a head does not name its taps.
    teacher = Teacher(model, watched.taps or (2, layers // 2, layers - 3))
    found = []
    for text in texts:
        if len(text) > 1:
            tokens = torch.tensor(text)
            taps = teacher.read(tokens[None])[0, :-1, :-1].flatten(1)
            found.append(watched.strongest_key_distances(tokens, watched.combine(taps)).flatten())
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
