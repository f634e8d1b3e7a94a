# SPDX-License-Identifier: Apache-2.0
"""One pass of a one-layer Llama head on CPU, as few operator calls as it takes.

A tree step runs the head D times on a handful of rows, where vLLM's layers spend most of their
time between the operators: these are called directly here, with vLLM's own weights and kernels.
"""

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
        self.embedding = inner.embed_tokens.weight
        self.layer, self.attention, self.mlp = layer, layer.self_attn, layer.mlp
        self.final_norm, self.norm_output = inner.norm, inner.norm_output
        self.norm_before_residual = bool(getattr(inner.config, "norm_before_residual", False))
        rotary = self.attention.rotary_emb
        self.rope = (rotary.head_size, rotary.cos_sin_cache, rotary.is_neox_style)

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
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        taps: torch.Tensor,
    ) -> torch.Tensor:
        """See `Head`: computes nothing of the rows but what is written to the pages."""
        hidden = self.model.combine_hidden_states(taps)
        layer = self.attention.attn
        _, key, value = self._projected(self._inputs(tokens, hidden)[0], positions)
        layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)
        return hidden

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


def _linear(linear: "LinearBase", x: torch.Tensor) -> torch.Tensor:
    return linear.cpu_linear(x, linear.weight, linear.bias)


def _norm(x: torch.Tensor, norm: "RMSNorm") -> torch.Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, norm.weight, norm.variance_epsilon)
    return out


def _add_norm(x: torch.Tensor, residual: torch.Tensor, norm: "RMSNorm") -> None:
    """`residual += x`, then `x = norm(residual)`."""
    torch.ops._C.fused_add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
