# SPDX-License-Identifier: Apache-2.0
"""A tiny target and a tiny EAGLE-3 head as checkpoint folders, built without training.

The target's embedding rows are random directions and its output row for byte p(x) is the
embedding of byte x, where p is one cycle through all bytes, so x tends to be followed by p(x).
The random layers in between make the context decide in about one case in ten, so greedy text
wanders over the bytes instead of repeating a few. The head's attention looks at the token itself
and copies a projection of its embedding to the output, which the target's own output rows then
map to p(x). It is right about every second time, for its attention is blurred by its previous
state: so a second and third candidate are worth drafting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu

BYTES = 256
VOCAB = BYTES + 3
BOS, EOS, PAD = 256, 257, 258
DRAFT_VOCAB = 200
HIDDEN = 64
HEAD_SIZE = 32
TAPS = (1, 2, 3)


def write_tiny_pangu(folder: Path) -> Path:
    """A 3-layer openPangu checkpoint in float32, with tokenizer."""
    save_llama_as_pangu(tiny_target(bias=True), folder, dtype=torch.float32)
    write_byte_tokenizer(folder)
    return folder


def write_tiny_llama(folder: Path, **options) -> Path:
    """The same shape as a Llama checkpoint, without biases, with tokenizer."""
    tiny_target(bias=False, **options).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write_tiny_head(folder: Path, target: LlamaForCausalLM | None = None, **options) -> Path:
    """An EAGLE-3 head for `tiny_target(bias=True)` or `target`, as vLLM and SGLang read it.

    `options` overrides config.json (`norm_before_residual`, `fc_norm`, ...); the weights that
    they ask for are added. Layers with a window look far beyond it, so that it matters.
    """
    target = target or tiny_target(bias=True)
    return _write_head(folder, head_config() | options, head_config() | options, target)


def write_speculators_head(folder: Path, algorithm: str = "eagle3", **options) -> Path:
    """The same head in the format of the trainer `speculators`: its config, its weights' names."""
    flat = head_config() | {"model_type": "llama"} | options
    masks = {"mask_token_id": flat["ptd_token_id"]} if "ptd_token_id" in flat else {}
    own = ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids")
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    apart = {*own, *norms, "architectures", "ptd_token_id"}
    config = (
        {key: flat[key] for key in (*own, *norms) if key in flat}
        | masks
        | {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": algorithm,
            "speculators_version": "0.9.0",
            "transformer_layer_config": {k: v for k, v in flat.items() if k not in apart},
            "speculators_config": {
                "algorithm": algorithm,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
            },
        }
    )
    return _write_head(folder, config, flat, tiny_target(bias=True))


# What a trainer puts into config.json: by its architecture each names the same class of vLLM's.
TRAINERS = {
    # eagle/traineagle3/config.json; DeepSpeed's save_16bit_model
    "EAGLE": {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float16"},
    # configs/qwen3-8b-eagle3.json; export/to_sglang.py
    "SpecForge": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 36,
    },
    # train/configs/qwen3-8b-eagle3.json; train/trainer/eagle3_trainer.py
    "AngelSlim": {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "target_model_type": "qwen3",
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    },
}


def write_trainers_head(folder: Path, trainer: str) -> Path:
    """The same head as a trainer of TRAINERS leaves it: no taps named, no norm before the residual,
    no embeddings; EAGLE's in float16 and pickled."""
    unsaid = ("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "target_hidden_size")
    config = {key: value for key, value in head_config().items() if key not in unsaid}
    _write_head(folder, config | TRAINERS[trainer], head_config(), tiny_target(bias=True))
    if trainer == "EAGLE":
        weights = load_file(folder / "model.safetensors")
        half = {k: w.half() if w.is_floating_point() else w for k, w in weights.items()}
        torch.save(half, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def _write_head(folder: Path, config: dict, flat: dict, target: LlamaForCausalLM) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = head_weights(flat, target)
    if "speculators_config" in config:
        weights = {name.replace("midlayer.", "layers.0."): w for name, w in weights.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def tiny_target(bias: bool, **options) -> LlamaForCausalLM:
    """The target itself; the same weights at every call. `options` overrides its config."""
    generator = torch.Generator().manual_seed(20)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_SIZE,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        attention_bias=bias,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    config.update(options)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.8, 1.2, generator=generator)
            else:
                weight.normal_(0.0, 0.12, generator=generator)
        embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        model.model.embed_tokens.weight.copy_(embedding)
        cycle = torch.randperm(BYTES, generator=generator)
        # Special tokens keep their small random rows: they are never the likeliest.
        model.lm_head.weight[cycle.roll(-1)] = embedding[cycle] / 4
    return model


def head_config() -> dict:
    """config.json of the head: one Llama layer, a draft vocabulary with gaps."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "norm_before_residual": True,
        "torch_dtype": "float32",
    }


def head_weights(config: dict, target: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Weights of the head under their checkpoint names, float32."""
    generator = torch.Generator().manual_seed(21)

    def small(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.02

    draft_ids = torch.randperm(BYTES, generator=generator)[:DRAFT_VOCAB].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[draft_ids] = True
    # Orthonormal rows: W.T @ W is the best 32-dimensional copy of the embedding.
    copy = torch.linalg.qr(torch.randn(HIDDEN, HEAD_SIZE, generator=generator))[0].T.contiguous()
    nothing = torch.zeros(HEAD_SIZE, HIDDEN)
    windowed = "sliding_attention" in (config.get("layer_types") or [])
    look_at_self = torch.cat([copy * (1 if windowed else 2), nothing], dim=1)
    inner = config["intermediate_size"]
    taps = len(config["eagle_aux_hidden_state_layer_ids"])
    weights = {
        "fc.weight": small(HIDDEN, taps * HIDDEN),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.full((HIDDEN,), 0.7),
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": look_at_self.repeat(2, 1) + small(64, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": look_at_self + small(HEAD_SIZE, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": torch.cat([copy, nothing], dim=1),
        "midlayer.self_attn.o_proj.weight": copy.T.repeat(1, 2) / 3,
        "midlayer.mlp.gate_proj.weight": small(inner, HIDDEN),
        "midlayer.mlp.up_proj.weight": small(inner, HIDDEN),
        "midlayer.mlp.down_proj.weight": small(HIDDEN, inner),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": target.lm_head.weight[draft_ids].detach().clone(),
        "d2t": draft_ids - torch.arange(DRAFT_VOCAB),
        "t2d": known,
    }
    if "ptd_token_id" in config:
        weights["mask_hidden"] = 50 * small(1, taps * HIDDEN)
    if config.get("norm_before_fc"):
        weights["input_norm.weight"] = 1 + small(taps * HIDDEN)
    if config.get("fc_norm"):
        for tap in range(taps):
            weights[f"fc_norm.{tap}.weight"] = 1 + small(HIDDEN)
    for layer in range(1, config["num_hidden_layers"]):
        weights |= _later_layer(f"layers.{layer}.", inner, small)
    if config["model_type"] == "qwen3":
        for layer in (
            "midlayer.",
            *(f"layers.{i}." for i in range(1, config["num_hidden_layers"])),
        ):
            for norm in ("q_norm", "k_norm"):
                weights[f"{layer}self_attn.{norm}.weight"] = 1.5 + small(HEAD_SIZE)
    return {name: weight.contiguous() for name, weight in weights.items()}


def _later_layer(
    name: str, inner: int, small: Callable[..., torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A decoder layer that reads states only, and adds to them what it attends."""
    square = (HIDDEN, HIDDEN)
    return {
        f"{name}input_layernorm.weight": torch.ones(HIDDEN),
        f"{name}hidden_norm.weight": torch.ones(HIDDEN),
        f"{name}post_attention_layernorm.weight": torch.ones(HIDDEN),
        f"{name}self_attn.q_proj.weight": small(*square) * 4,
        f"{name}self_attn.k_proj.weight": small(HEAD_SIZE, HIDDEN) * 4,
        f"{name}self_attn.v_proj.weight": small(HEAD_SIZE, HIDDEN) * 4,
        f"{name}self_attn.o_proj.weight": small(*square) * 4,
        f"{name}mlp.gate_proj.weight": small(inner, HIDDEN),
        f"{name}mlp.up_proj.weight": small(inner, HIDDEN),
        f"{name}mlp.down_proj.weight": small(HIDDEN, inner),
    }


def write_byte_tokenizer(folder: Path) -> None:
    """One token per byte, in the order of the byte-level alphabet, and <s>, </s>, <pad>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
