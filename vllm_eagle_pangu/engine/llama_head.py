# SPDX-License-Identifier: Apache-2.0
"""One pass of a one-layer Llama head on CPU, as few operator calls as it takes.

A tree step runs the head D times on a handful of rows, where vLLM's layers spend most of their
time between the operators: these are called directly here, with vLLM's own weights and kernels.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch.nn.functional import embedding
from vllm import _custom_ops as ops
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
from vllm.v1.spec_decode.eagle import EagleProposer

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.engine.draft_head import DraftHead, TreeOnlyMetadata
from vllm_eagle_pangu.step.head import States

if TYPE_CHECKING:
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.v1.attention.backend import AttentionMetadata


class LlamaHead(DraftHead):
    """A head that `is_plain_llama`, operator by operator.

    Source of the mathematics: vllm/model_executor/models/llama_eagle3.py.
    """

    rowwise = True

    def __init__(self, proposer: EagleProposer, ops: Ops) -> None:
        super().__init__(proposer, ops)
        inner = proposer.model.model
        (layer,) = inner.layers
        attention, mlp, rotary = layer.self_attn, layer.mlp, layer.self_attn.rotary_emb
        # Bound once: a module looks for its parts in Python, at each access.
        self.embedding = inner.embed_tokens.weight
        self.input_norm = _norm_of(layer.input_layernorm)
        self.hidden_norm = _norm_of(layer.hidden_norm)
        self.mlp_norm = _norm_of(layer.post_attention_layernorm)
        self.final_norm = _norm_of(inner.norm)
        self.qkv_proj, self.o_proj = _linear_of(attention.qkv_proj), _linear_of(attention.o_proj)
        self.qkv_sizes = [attention.q_size, attention.kv_size, attention.kv_size]
        self.rope = (rotary.head_size, rotary.cos_sin_cache, rotary.is_neox_style)
        self.attention = attention.attn
        self.gate_up_proj, self.down_proj = _linear_of(mlp.gate_up_proj), _linear_of(mlp.down_proj)
        self.norm_output = inner.norm_output
        self.norm_before_residual = bool(getattr(inner.config, "norm_before_residual", False))

    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,
    ) -> States:
        """See `DraftHead`."""
        x, normed = self._inputs(tokens, hidden)
        residual = normed.clone() if self.norm_before_residual else hidden
        query, key, value = self._projected(x, positions)
        layer = self.attention
        if slots is not None:
            layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)
        attended = x.new_empty(query.shape)
        layer.impl.forward(layer, query, key, value, layer.kv_cache, metadata, attended)
        x = self.o_proj(attended.view(x.shape[0], -1))
        _add_norm(x, residual, self.mlp_norm)
        gate_up = self.gate_up_proj(x)
        gated = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        torch.ops._C.silu_and_mul(gated, gate_up)
        x = self.down_proj(gated)
        _add_norm(x, residual, self.final_norm)
        return x, x if self.norm_output else residual

    def read(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        taps: torch.Tensor,
    ) -> torch.Tensor:
        """See `Head`: computes nothing of the rows but what is written to the pages."""
        hidden = self.model.combine_hidden_states(taps)
        layer = self.attention
        _, key, value = self._projected(self._inputs(tokens, hidden)[0], positions)
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)
        return hidden

    def _inputs(
        self, tokens: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention projects, `[n, 2 H]`, and its second half."""
        embeds = _norm(embedding(tokens, self.embedding), self.input_norm)
        normed = _norm(hidden, self.hidden_norm)
        return torch.cat((embeds, normed), -1), normed

    def _projected(
        self, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value, `[n, heads, head_size]`, at their positions."""
        query, key, value = self.qkv_proj(x).split_with_sizes(self.qkv_sizes, -1)
        head_size, cos_sin, is_neox = self.rope
        ops.rotary_embedding(positions, query, key, head_size, cos_sin, is_neox)
        shape = (x.shape[0], -1, self.attention.head_size)
        return query.view(shape), key.view(shape), value.view(shape)


def is_plain_llama(model: torch.nn.Module) -> TypeGuard[Eagle3LlamaForCausalLM]:
    """Whether `LlamaHead` does what the head's `forward` does: on CPU, unquantised, one layer.

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


def _linear_of(linear: "LinearBase") -> Callable[[torch.Tensor], torch.Tensor]:
    run, weight, bias = linear.cpu_linear, linear.weight, linear.bias
    return lambda x: run(x, weight, bias)


def _norm_of(norm: "RMSNorm") -> tuple[torch.Tensor, float]:
    return norm.weight, norm.variance_epsilon


def _norm(x: torch.Tensor, norm: tuple[torch.Tensor, float]) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, *norm)
    return out


def _add_norm(x: torch.Tensor, residual: torch.Tensor, norm: tuple[torch.Tensor, float]) -> None:
    """`residual += x`, then `x = norm(residual)`."""
    torch.ops._C.fused_add_rms_norm(x, residual, *norm)
