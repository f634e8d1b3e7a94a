# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer

from vllm_eagle_pangu.models.registration import PanguEmbeddedConfig, register_models

# As openPangu-Embedded-7B publishes it, remote code included.
PUBLISHED = {
    "architectures": ["PanguEmbeddedForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_openpangu_dense.PanguEmbeddedConfig"},
    "bias": True,
    "eos_token_id": 45892,
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "model_type": "PanguEmbedded",
    "num_attention_heads": 32,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 16000000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 153376,
}


def test_published_config_loads_without_running_its_remote_code(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    register_models()
    register_models()
    config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(config) is PanguEmbeddedConfig
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 16000000.0}
    assert (config.head_dim, config.bias, config.mlp_bias) == (128, True, False)
    assert str(config.dtype) == "torch.bfloat16"


def test_config_survives_saving(tmp_path: Path):
    register_models()
    config = PanguEmbeddedConfig(num_hidden_layers=3, rope_theta=5000.0, head_dim=64, bias=False)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    again.name_or_path = config.name_or_path
    assert again.to_dict() == config.to_dict()
    assert again.rope_parameters["rope_theta"] == 5000.0


def test_missing_kv_heads_mean_no_grouping():
    assert PanguEmbeddedConfig(num_key_value_heads=None).num_key_value_heads == 32


def test_vllm_reads_config_and_tokenizer_without_remote_code(tiny_pangu: Path):
    pytest.importorskip("vllm")
    from vllm.transformers_utils.config import get_config

    register_models()
    config = get_config(str(tiny_pangu), trust_remote_code=False)
    assert type(config) is PanguEmbeddedConfig
    assert config.rope_parameters["rope_theta"] == 10000.0
    tokenizer = AutoTokenizer.from_pretrained(tiny_pangu, trust_remote_code=False)
    assert tokenizer.decode(tokenizer("a tree").input_ids) == "a tree"


def test_registration_is_silent_and_lazy_and_repeatable():
    pytest.importorskip("vllm")
    # In a process of its own: it asks what has been imported so far.
    script = """
import sys
from vllm import ModelRegistry
from vllm_eagle_pangu.models.registration import MODEL_CLASS, register_models
register_models()
entry = ModelRegistry.models["PanguEmbeddedForCausalLM"]
register_models()
assert ModelRegistry.models["PanguEmbeddedForCausalLM"] is entry
assert f"{entry.module_name}:{entry.class_name}" == MODEL_CLASS
assert "vllm_eagle_pangu.models.openpangu" not in sys.modules
"""
    quiet = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_PLUGINS": ""}
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "already registered" not in run.stdout + run.stderr


def test_registration_leaves_another_plugins_model_alone():
    pytest.importorskip("vllm")
    from vllm import ModelRegistry

    name = "PanguEmbeddedForCausalLM"
    before = ModelRegistry.models[name]
    try:
        ModelRegistry.register_model(name, "another.plugin:Model")
        theirs = ModelRegistry.models[name]
        register_models()
        assert ModelRegistry.models[name] is theirs
    finally:
        ModelRegistry.models[name] = before
