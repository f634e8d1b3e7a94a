# SPDX-License-Identifier: Apache-2.0
"""One pass of an EAGLE-3 head, as few operator calls as it takes.

A tree step runs the head D times on a handful of rows, where vLLM's layers spend most of their
time between the operators. `HeadPass` calls the operators of a one-layer Llama head directly, with
vLLM's own weights and kernels; every other head goes through its `forward`.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch.nn.functional import embedding
from vllm import _custom_ops as ops
from vllm.forward_context import set_forward_context
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from vllm_eagle_pangu.step.head import States
from vllm_eagle_pangu.step.rows import TreeRows

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.v1.attention.backend import AttentionMetadata


@dataclass(frozen=True)
class TreeOnlyMetadata:
    """Attention metadata of a pass in which every row belongs to a tree."""

    tree: TreeRows


def head_pass(model: torch.nn.Module, vllm_config: "VllmConfig", layer_names: list[str]) -> "Pass":
    """The fastest pass that runs this head."""
    if _is_plain_llama(model):
        return HeadPass(model, vllm_config, layer_names)
    return Pass(model, vllm_config, layer_names)


class Pass:
    """Runs any head over n rows, through its own `forward`."""

    def __init__(
        self, model: torch.nn.Module, vllm_config: "VllmConfig", layer_names: list[str]
    ) -> None:
        self.model = model
        self.vllm_config = vllm_config
        self.layer_names = layer_names

    def __call__(
        self,
        # [n] int64
        tokens: torch.Tensor,
        # [n] int64
        positions: torch.Tensor,
        # [n, H], overwritten
        hidden: torch.Tensor,
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        # [n] page slots, or None when the K/V of these rows is not for the pages
        slots: torch.Tensor | None,
    ) -> States:
        """States for the logits and for the next pass, `[n, H]` each."""
        with self.context(tokens.shape[0], metadata, slots):
            return self.model(
                input_ids=tokens.int(),
                positions=positions,
                hidden_states=hidden,
                inputs_embeds=None,
            )

    def context(
        self,
        rows: int,
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,
    ) -> AbstractContextManager[None]:
        """In which the layers find their metadata and slots."""
        return set_forward_context(
            dict.fromkeys(self.layer_names, metadata),
            self.vllm_config,
            num_tokens=rows,
            slot_mapping={} if slots is None else dict.fromkeys(self.layer_names, slots),
        )

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """`[n, V_d]` logits over the draft vocabulary."""
        return self.model.logits_processor(self.model.lm_head, states)


class HeadPass(Pass):
    """A one-layer Llama head on CPU, operator by operator.

    Source of the mathematics: vllm/model_executor/models/llama_eagle3.py.
    """

    def __init__(
        self, model: Eagle3LlamaForCausalLM, vllm_config: "VllmConfig", layer_names: list[str]
    ) -> None:
        super().__init__(model, vllm_config, layer_names)
        inner = model.model
        (layer,) = inner.layers
        self.embedding = inner.embed_tokens.weight
        self.layer, self.attention, self.mlp = layer, layer.self_attn, layer.mlp
        self.final_norm, self.norm_output = inner.norm, inner.norm_output
        self.norm_before_residual = bool(getattr(inner.config, "norm_before_residual", False))
        rotary = self.attention.rotary_emb
        self.rope = (rotary.head_size, rotary.cos_sin_cache, rotary.is_neox_style)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,
    ) -> States:
        """See `Pass`."""
        x, normed = self._inputs(tokens, hidden)
        residual = normed.clone() if self.norm_before_residual else hidden
        query, key, value = self._projected(x, positions)
        layer = self.attention.attn
        if slots is not None:
            layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)
        attended = x.new_empty(query.shape)
        layer.impl.forward(layer, query, key, value, layer.kv_cache, metadata, attended)
        x = _linear(self.attention.o_proj, attended.view(x.shape[0], -1))
        _add_norm(x, residual, self.layer.post_attention_layernorm)
        gate_up = _linear(self.mlp.gate_up_proj, x)
        gated = torch.empty_like(gate_up[:, : gate_up.shape[1] // 2])
        torch.ops._C.silu_and_mul(gated, gate_up)
        x = _linear(self.mlp.down_proj, gated)
        _add_norm(x, residual, self.final_norm)
        return x, x if self.norm_output else residual

    def read(
        self,
        tokens: torch.Tensor,  # [n] int64
        positions: torch.Tensor,  # [n] int64
        hidden: torch.Tensor,  # [n, H]
        slots: torch.Tensor,  # [n], -1 for nowhere
    ) -> None:
        """Write the K/V of these rows to the pages, and compute nothing else of them."""
        layer = self.attention.attn
        _, key, value = self._projected(self._inputs(tokens, hidden)[0], positions)
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)

    def _inputs(
        self, tokens: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention projects, `[n, 2 H]`, and its second half."""
        embeds = _norm(embedding(tokens, self.embedding), self.layer.input_layernorm)
        normed = _norm(hidden, self.layer.hidden_norm)
        return torch.cat((embeds, normed), -1), normed

    def _projected(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value, `[n, heads, head_size]`, at their positions."""
        attention = self.attention
        qkv = _linear(attention.qkv_proj, x)
        sizes = [attention.q_size, attention.kv_size, attention.kv_size]
        query, key, value = qkv.split(sizes, dim=-1)
        head_size, cos_sin, is_neox = self.rope
        ops.rotary_embedding(positions, query, key, head_size, cos_sin, is_neox)
        shape = (x.shape[0], -1, attention.attn.head_size)
        return query.view(shape), key.view(shape), value.view(shape)


def _is_plain_llama(model: torch.nn.Module) -> TypeGuard[Eagle3LlamaForCausalLM]:
    """Whether `HeadPass` does what the head's `forward` does: on CPU, unquantised, one layer.

    Not of a layer with a window: its pages are a KV group of their own, vLLM shares memory among
    groups, and a row that is read late would be written over what is another group's by then.
    """
    if type(model) is not Eagle3LlamaForCausalLM or len(model.model.layers) != 1:
        return False
    layer = model.model.layers[0]
    attention = layer.self_attn
    linears = (attention.qkv_proj, attention.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)
    rotary = attention.rotary_emb
    return (
        all(hasattr(linear, "cpu_linear") for linear in linears)
        and attention.attn.impl.window is None
        and layer.layer_idx == 0
        and type(rotary).__name__ in ("RotaryEmbedding", "Llama3RotaryEmbedding")
        and rotary.cos_sin_cache.dtype == model.model.embed_tokens.weight.dtype
        and rotary.rotary_dim == rotary.head_size
    )


def _linear(linear: "LinearBase", x: torch.Tensor) -> torch.Tensor:
    return linear.cpu_linear(x, linear.weight, linear.bias)


def _norm(x: torch.Tensor, norm: "RMSNorm") -> torch.Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, norm.weight, norm.variance_epsilon)
    return out


def _add_norm(x: torch.Tensor, residual: torch.Tensor, norm: "RMSNorm") -> None:
    """`residual += x`, then `x = norm(residual)`."""
    torch.ops._C.fused_add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
