# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_eagle_pangu.models.pangu_as_llama import (
    llama_config_from_pangu,
    load_target,
    pangu_config_from_llama,
    save_llama_as_pangu,
)


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=63,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attention_bias=True,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_logits_survive_a_round_trip_through_a_pangu_folder(tmp_path, tied):
    model = tiny_llama(tied)
    save_llama_as_pangu(model, tmp_path, torch.float32)
    loaded = load_target(tmp_path, torch.float32)
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["PanguEmbeddedForCausalLM"]
    assert config["bias"] is True and config["rope_theta"] == 50000.0


def test_config_round_trip_keeps_every_size():
    original = tiny_llama(True).config
    back = llama_config_from_pangu(pangu_config_from_llama(original))
    for key in ("hidden_size", "head_dim", "num_key_value_heads", "attention_bias"):
        assert getattr(back, key) == getattr(original, key)
    assert back.rope_parameters["rope_theta"] == 50000.0


def test_sandwich_norms_are_refused_by_name():
    config = pangu_config_from_llama(tiny_llama(True).config)
    with pytest.raises(ValueError, match="sandwich_norm=True"):
        llama_config_from_pangu({**config, "sandwich_norm": True})


def test_missing_biases_are_named(tmp_path):
    model = tiny_llama(True)
    save_llama_as_pangu(model, tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "bias": False}))
    with pytest.raises(ValueError, match=r"unexpected.*bias"):
        load_target(tmp_path, torch.float32)
