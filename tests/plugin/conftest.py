# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders that vLLM can configure itself for, and the error it then shows."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, VOCABULARY, DRAFT_VOCABULARY = 8, 64, 512, 128

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
HEAD = TARGET | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
}
# The tensors whose shapes say whether a head fits; the layer itself is left out.
HEAD_SHAPES = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "embed_tokens.weight": (VOCABULARY, HIDDEN),
    "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
    "d2t": (DRAFT_VOCABULARY,),
}


@pytest.fixture
def write_target(tmp_path: Path) -> Callable[..., Path]:
    """Writes a target folder that is only a config.json; keyword arguments change it."""
    return lambda **changes: _write(tmp_path / "target", TARGET | changes)


@pytest.fixture
def write_head(tmp_path: Path) -> Callable[..., Path]:
    """Writes a head folder; `shapes` replaces its tensors' shapes, keywords change its config."""

    def write(shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> Path:
        folder = _write(tmp_path / "head", HEAD | changes)
        tensors = {
            name: torch.zeros(shape)
            for name, shape in (HEAD_SHAPES if shapes is None else shapes).items()
        }
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@pytest.fixture
def target(write_target: Callable[..., Path]) -> Path:
    return write_target()


@pytest.fixture
def head(write_head: Callable[..., Path]) -> Path:
    return write_head()


@pytest.fixture
def engine_args(target: Path, head: Path) -> Callable[..., Any]:
    """Builds `EngineArgs` with the method; `spec` changes its keys, keywords the arguments."""
    return lambda spec=None, **options: build_args(target, head, spec, **options)


@pytest.fixture
def refused() -> Callable[[Any], str]:
    """The message with which building a configuration from `EngineArgs` is refused."""

    def message(args: Any) -> str:
        with pytest.raises(ValueError, match="eagle_pangu: ") as refusal:
            args.create_engine_config()
        return str(refusal.value)

    return message


@pytest.fixture
def know_class(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Lets vLLM inspect one of its model classes here, not in a subprocess of many seconds."""

    def register(module: str, name: str) -> None:
        from vllm.model_executor.models.registry import ModelRegistry, _RegisteredModel

        model_class = getattr(import_module(f"vllm.model_executor.models.{module}"), name)
        monkeypatch.setitem(
            ModelRegistry.models, name, _RegisteredModel.from_model_cls(model_class)
        )

    return register


@pytest.fixture
def build() -> Callable[..., Any]:
    return build_args


def build_args(target: Path, head: Path, spec: dict[str, Any] | None = None, **options: Any) -> Any:
    from vllm import EngineArgs

    base = {"method": "eagle_pangu", "model": str(head)}
    config = {key: value for key, value in (base | (spec or {})).items() if value is not ...}
    defaults = {"skip_tokenizer_init": True, "load_format": "dummy", "max_model_len": 256}
    return EngineArgs(model=str(target), speculative_config=config, **(defaults | options))


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
