# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head: one Llama layer over the target's hidden states; its checkpoint, as vLLM's.

Arithmetic and weight names follow vLLM's `model_executor/models/llama_eagle3.py` with
`norm_before_residual` and `norm_output` off: the residual is the raw hidden state, and the
next draft step is fed the state *before* the final norm. It drafts from the tokens that are most
frequent in the answers: with all, its output layer would dwarf it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.models.pangu_as_llama import WEIGHTS_FILE
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.run_folder import whole_file

FREQUENCIES_FILE = "token_freq.pt"
"""How often the target said a token: a dict, as speculators writes it."""
OF_TARGET = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("max_position_embeddings", "rms_norm_eps"),
)


def head_config(config: HeadConfig, target: Any) -> LlamaConfig:
    """The head's `config.json`: the target's, but for the MLP, the draft vocabulary, the taps.

    Masked rows have the vocabulary's last token: what they are their hidden state tells.
    """
    theta = float(target.rope_parameters["rope_theta"])
    mask = {"ptd_token_id": target.vocab_size - 1} if config.parallel else {}
    return LlamaConfig(
        **{key: getattr(target, key) for key in OF_TARGET},
        architectures=["LlamaForCausalLMEagle3"],
        target_hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        draft_vocab_size=config.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=list(config.taps),
        norm_before_residual=False,
        norm_output=False,
        **mask,
    )


@dataclass(frozen=True)
class RolloutKeys:
    """What the steps of a training-time test attend to, all anchors at once.

    Rollout step k of the anchor at position t drafts from position t + k. It may see what it would
    see when drafting for real: the keys that true hidden states gave for positions 0..t (step 0),
    and its own earlier keys, one per step: those of steps 1..k *of the same anchor*. So step 0
    needs a causal matrix, over the answers that a row packs, and each later step one diagonal.
    """

    hidden: Tensor
    """[B, A, A]: -inf where a row must not see a key of step 0, else 0."""
    keys: tuple[Tensor, ...] = ()
    """One [B, H_kv, A, D] per step 0..k, rotated; row t of step i has position t + i."""
    values: tuple[Tensor, ...] = ()

    @classmethod
    def over(cls, document: Tensor) -> "RolloutKeys":
        """document: [B, A]; a row sees itself and those before it of the same document."""
        alien = document[:, :, None] != document[:, None, :]
        unseen = alien | torch.ones_like(alien).triu(1)
        return cls(torch.zeros_like(unseen, dtype=torch.float).masked_fill(unseen, float("-inf")))

    def attend(self, query: Tensor) -> Tensor:
        """query: [B, H, A, D] of the last step, rotated -> [B, H, A, D]."""
        anchors, dim = query.shape[2:]
        grouped = (query * dim**-0.5).unflatten(1, (self.keys[0].shape[1], -1))
        scores = torch.einsum("bhgad,bhcd->bhgac", grouped, self.keys[0])
        scores = scores + self.hidden[:, None, None].to(scores.dtype)
        if len(self.keys) > 1:
            own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key in self.keys[1:]]
            scores = torch.cat([scores, *own], dim=-1)
        weights = torch.softmax(scores, dim=-1).to(self.values[0].dtype)
        mixed = torch.einsum("bhgac,bhcd->bhgad", weights[..., :anchors], self.values[0])
        for step, value in enumerate(self.values[1:]):
            mixed = mixed + weights[..., anchors + step, None] * value[:, :, None]
        return mixed.flatten(1, 2)


class DraftLayer(LlamaDecoderLayer):
    """The head's only layer (`midlayer` in checkpoints), Llama's but for what attention is given.

    That is twice as wide: the normed embedding beside the normed hidden state.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, layer_idx=0)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(self.self_attn, name).out_features
            linear = nn.Linear(2 * config.hidden_size, size, bias=config.attention_bias)
            setattr(self.self_attn, name, linear)

    def forward(
        self, embeds: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor], past: RolloutKeys
    ) -> tuple[Tensor, RolloutKeys]:
        """embeds, hidden: [B, A, H] -> state before the final norm [B, A, H], seen keys."""
        query, key, value = self.projected(embeds, hidden, rotary)
        seen = RolloutKeys(past.hidden, (*past.keys, key), (*past.values, value))
        context = seen.attend(query).transpose(1, 2).flatten(2)
        residual = hidden + self.self_attn.o_proj(context)
        return residual + self.mlp(self.post_attention_layernorm(residual)), seen

    def projected(
        self, embeds: Tensor, hidden: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of rows as in `forward` the query [B, H, A, D], key and value [B, H_kv, A, D]."""
        rows = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        attention, rows = self.self_attn, rows.to(hidden.dtype)
        query, key, value = (
            linear(rows).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        # Turned in the angles' precision, kept in the rows'.
        turned = apply_rotary_pos_emb(query, key, *rotary)
        query, key = (vectors.to(value.dtype) for vectors in turned)
        return query, key, value


class EagleHead(nn.Module):
    """EAGLE-3 head without its embedding, which is the target's.

    `mask_hidden: [taps * H_t]`, in place of the taps of masked rows; None where the config names no
    token for these: then the head drafts from its own states.
    """

    target_ids: Tensor
    mask_hidden: nn.Parameter | None

    def __init__(self, config: LlamaConfig, target_ids: Tensor) -> None:
        """target_ids: [V_d] int64, of each draft id; ascending, so offsets never fall."""
        super().__init__()
        assert target_ids.dtype == torch.int64 and bool((target_ids.diff() > 0).all())
        self.config = config
        self.register_buffer("target_ids", target_ids, persistent=False)
        taps_size = config.target_hidden_size * len(config.eagle_aux_hidden_state_layer_ids)
        self.fc = nn.Linear(taps_size, config.hidden_size, bias=False)
        masked = getattr(config, "ptd_token_id", None) is not None
        self.mask_hidden = nn.Parameter(torch.randn(taps_size)) if masked else None
        self.midlayer = DraftLayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(
        self, embeds: Tensor, hidden: Tensor, positions: Tensor, past: RolloutKeys
    ) -> tuple[Tensor, Tensor, RolloutKeys]:
        """One pass of the layer over A rows per sequence.

        Args:
            embeds: [B, A, H] embedding of the token after each row's position.
            hidden: [B, A, H] combined taps (first pass) or the previous pass's states.
            positions: [A] rotary positions.
            past: keys of earlier rollout steps of the same rows.

        Returns:
            states for the next pass [B, A, H], normed states for `lm_head` [B, A, H], and the
            keys with this pass's added.
        """
        # Cosines and sines in the dtype of its first argument: the weights', not autocast's.
        rotary = self.rotary(self.norm.weight, positions[None])
        state, seen = self.midlayer(embeds, hidden, rotary, past)
        return state, self.norm(state), seen


def save_head(head: EagleHead, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and model.safetensors; the embedding is left out, it is the target's."""
    weights = {name: tensor.to("cpu", dtype) for name, tensor in head.state_dict().items()}
    d2t, t2d = offsets_and_mask(head.target_ids.cpu(), head.config.vocab_size)
    weights.update(d2t=d2t, t2d=t2d)
    with whole_file(folder / WEIGHTS_FILE) as partial:
        partial.write_bytes(save(weights, metadata={"format": "pt"}))
    # As transformers 4 and other readers have these two.
    theta = head.config.rope_parameters["rope_theta"]
    older = {"rope_theta": theta, "torch_dtype": str(dtype).removeprefix("torch.")}
    with whole_file(folder / "config.json") as partial:
        partial.write_text(json.dumps(head.config.to_diff_dict() | older, indent=2) + "\n")


def offsets_and_mask(target_ids: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """What checkpoints call d2t and t2d. target_ids: [V_d] int64, of each draft id; ascending.

    Returns:
        [V_d] int64, target id = draft id + d2t[draft id]; and [V] bool, which target ids can be
        drafted.
    """
    offsets = target_ids - torch.arange(len(target_ids))
    return offsets, torch.isin(torch.arange(vocab_size), target_ids)


def draft_vocabulary(prepared: Path, vocab_size: int, size: int) -> Tensor:
    """The `size` most frequent ids of the answers in `prepared`; ties go to the lower id.

    Gives the target id of each draft id, [size] int64, ascending. Made once: kept as
    `d2t-{size}.npy` and `t2d-{size}.npy`, where speculators keeps and finds them, too.

    Raises ValueError where `size` is not in 1..V-1 (vLLM refuses a d2t for equal vocabularies).
    """
    if not 0 < size < vocab_size:
        problem = f"the target's vocabulary has {vocab_size}"
        mend = "choose at least 1 and less than that"
        raise refusal("head.draft_vocab_size", size, problem, mend)
    offsets, mask = (prepared / f"{name}-{size}.npy" for name in ("d2t", "t2d"))
    if offsets.exists():
        return torch.from_numpy(np.load(offsets)) + torch.arange(size)
    said = torch.load(prepared / FREQUENCIES_FILE, weights_only=True)
    counts = torch.tensor([said.get(token, 0) for token in range(vocab_size)])
    order = torch.sort(counts, descending=True, stable=True).indices
    target_ids = order[:size].sort().values
    d2t, t2d = offsets_and_mask(target_ids, vocab_size)
    np.save(mask, t2d.numpy())
    np.save(offsets, d2t.numpy())
    coverage = float(counts[target_ids].sum() / counts.sum().clamp_min(1))
    print(f"draft vocabulary: {coverage:.2%} of the answers' tokens")
    return target_ids
