# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head in float32, one row at a time, with its keys and values in plain lists.

The math is that of vLLM's `model_executor/models/llama_eagle3.py`; it reads the same folders.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

# Key and value of one row, [Hk, K] each.
KeyValue = tuple[torch.Tensor, torch.Tensor]

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"


@dataclass
class DraftRow:
    """What one drafter row gives.

    `log_probs: [V_d] float32` over the draft vocabulary.
    `hidden: [H]`: the hidden state that the row's children are fed.
    """

    log_probs: torch.Tensor
    hidden: torch.Tensor
    key_value: KeyValue


class ReferenceDrafter:
    """An EAGLE-3 head with one decoder layer.

    Embedding and output weights that the folder lacks are the target's.

    Raises:
        ValueError: the folder holds no safetensors, weights this head does not use, or a head of
            more than one layer.
    """

    def __init__(
        self,
        folder: str | Path,
        target_embedding: torch.Tensor,
        target_output: torch.Tensor,
    ) -> None:
        self.config = LlamaConfig.from_pretrained(folder)
        if self.config.num_hidden_layers != 1:
            raise ValueError(
                f"{folder}: num_hidden_layers={self.config.num_hidden_layers}: "
                "the oracle decodes EAGLE-3 heads of one layer only"
            )
        weights = _read_weights(Path(folder))
        weights.setdefault(EMBEDDING, target_embedding)
        weights.setdefault(OUTPUT, target_output)
        weights.pop("t2d", None)
        offsets = weights.pop("d2t", None)
        self._weights = {name: weight.float() for name, weight in weights.items()}
        self._check_weights(folder)
        draft_ids = torch.arange(self._weights[OUTPUT].shape[0])
        # Draft id -> target id, [V_d] int64.
        self.target_ids = draft_ids if offsets is None else draft_ids + offsets
        self._rotary = LlamaRotaryEmbedding(self.config)

    @property
    def taps(self) -> tuple[int, ...] | None:
        """Target layers whose inputs the head reads; None where the folder does not say."""
        name = "eagle_aux_hidden_state_layer_ids"
        taps = getattr(self.config, name, None) or self._option(name, None)
        return tuple(taps) if taps else None

    def combine(self, taps: torch.Tensor) -> torch.Tensor:
        """Target states -> head width: `[N, taps*H_t] -> [N, H]`."""
        if not self._option("use_aux_hidden_state", True):
            return taps
        if self._option("norm_before_fc", False):
            taps = self._norm("input_norm", taps)
        if self._option("fc_norm", False):
            parts = taps.chunk(self._tap_count(), dim=-1)
            parts = [self._norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)]
            taps = torch.cat(parts, dim=-1)
        return self._linear("fc", taps)

    def row(
        self, token: int, hidden: torch.Tensor, position: int, past: list[KeyValue]
    ) -> DraftRow:
        """One row: the token after `hidden: [H]`, attending `past` (its prefix) and itself."""
        embedded = self._norm("midlayer.input_layernorm", self._weights[EMBEDDING][token])
        normed = self._norm("midlayer.hidden_norm", hidden)
        residual = normed if self._option("norm_before_residual", False) else hidden

        attended, key_value = self._attention(torch.cat([embedded, normed]), position, past)
        residual = residual + attended
        inner = self._norm("midlayer.post_attention_layernorm", residual)
        gate = ACT2FN[self.config.hidden_act](self._linear("midlayer.mlp.gate_proj", inner))
        inner = gate * self._linear("midlayer.mlp.up_proj", inner)
        residual = residual + self._linear("midlayer.mlp.down_proj", inner)

        output = self._norm("norm", residual)
        logits = self._linear("lm_head", output) * self._option("logit_scale", 1.0)
        return DraftRow(
            log_probs=logits.log_softmax(-1),
            hidden=output if self._option("norm_output", False) else residual,
            key_value=key_value,
        )

    def _attention(
        self, x: torch.Tensor, position: int, past: list[KeyValue]
    ) -> tuple[torch.Tensor, KeyValue]:
        size = self.config.head_dim
        query, key, value = (
            self._linear(f"midlayer.self_attn.{name}_proj", x).view(1, -1, 1, size)
            for name in "qkv"
        )
        cos, sin = self._rotary(x, torch.tensor([[position]]))
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        own = key[0, :, 0], value[0, :, 0]
        keys, values = (torch.stack(part, dim=1)[None] for part in zip(*past, own, strict=True))
        attended = scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        return self._linear("midlayer.self_attn.o_proj", attended.flatten()), own

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self._weights[f"{name}.weight"]
        return rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _option(self, name: str, default):
        nested = getattr(self.config, "eagle_config", None) or {}
        return nested.get(name, getattr(self.config, name, default))

    def _tap_count(self) -> int:
        # As in vLLM: tap ids count only where they stand in eagle_config.
        nested = getattr(self.config, "eagle_config", None) or {}
        count = getattr(self.config, "num_aux_hidden_states", None)
        return count or len(nested.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))

    def _check_weights(self, folder: str | Path) -> None:
        projections = [f"midlayer.self_attn.{name}_proj" for name in "qkvo"]
        norms = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
        names = {EMBEDDING, OUTPUT, "norm.weight"}
        names |= {f"midlayer.{name}.weight" for name in norms}
        names |= {f"{name}.weight" for name in projections}
        names |= {f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
        if self._option("use_aux_hidden_state", True):
            names.add("fc.weight")
        if self.config.attention_bias:
            names |= {f"{name}.bias" for name in projections}
        if self._option("norm_before_fc", False):
            names.add("input_norm.weight")
        if self._option("fc_norm", False):
            names |= {f"fc_norm.{i}.weight" for i in range(self._tap_count())}
        missing, unknown = names - self._weights.keys(), self._weights.keys() - names
        if missing or unknown:
            raise ValueError(
                f"{folder}: not the weights of an EAGLE-3 head with this config.json: "
                f"missing {sorted(missing)[:4]}, unknown {sorted(unknown)[:4]}"
            )


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: no *.safetensors file; convert the head to safetensors")
    weights = {name: weight for file in files for name, weight in load_file(file).items()}
    return {name.replace("layers.0.", "midlayer."): weight for name, weight in weights.items()}
