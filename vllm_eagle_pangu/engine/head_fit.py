# SPDX-License-Identifier: Apache-2.0
"""Whether `model` in speculative_config is an EAGLE-3 head at all, and whether it fits a target:
sizes, vocabularies, taps, and the weights themselves."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from vllm_eagle_pangu.config import TreeConfig, refusal
from vllm_eagle_pangu.engine.head_layers import check_layer_weights, check_layers
from vllm_eagle_pangu.engine.head_length import warn_of_short_head
from vllm_eagle_pangu.engine.head_parallel import check_parallel

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm.config import ModelConfig, VllmConfig

TAPS = "eagle_aux_hidden_state_layer_ids"
# vLLM's classes for heads with a plain decoder layer; its others draft with MLA.
_HEAD_CLASSES = ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
_DEFAULT_TAP_COUNT = 3
_TRAINED = "use a head that was trained for this target"
_NAME_A_HEAD = 'set "model" in speculative_config to the folder or hub name of an EAGLE-3 head'
_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def check_folder(model: str) -> None:
    """Refuse a local head that is missing or is no EAGLE-3 head, before vLLM looks for it itself.

    vLLM would first ask the hub for a folder that is not there, and search its whole registry for
    an architecture that it does not know; both take long and end in messages about something else.
    Raises ValueError.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not ("://" in model or _HUB_NAME.fullmatch(model)):
            raise refusal("model", model, "no such folder", _NAME_A_HEAD)
        return
    if not (folder / "config.json").is_file():
        raise refusal("model", model, "the folder has no config.json", _NAME_A_HEAD)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # The speculators format names its architecture elsewhere; vLLM translates it.
    if "speculators_config" in config:
        return
    from vllm import ModelRegistry

    known, architectures = ModelRegistry.get_supported_archs(), config.get("architectures") or []
    if not any(_as_eagle3(name) in known for name in architectures):
        raise refusal(
            "architectures",
            architectures,
            f"config.json of {model} names no EAGLE-3 head that vLLM knows",
            _NAME_A_HEAD,
        )


def _as_eagle3(architecture: str) -> str:
    """The name under which vLLM looks an EAGLE-3 head up (transformers_utils/configs/eagle.py)."""
    if architecture.startswith("Eagle3") or architecture.endswith("Eagle3"):
        return architecture
    return f"Eagle3{architecture}"


def check_head(vllm_config: "VllmConfig", tree: TreeConfig) -> None:
    """Refuse a head that does not fit the target or cannot fill the tree. Raises ValueError."""
    target = vllm_config.model_config
    draft = vllm_config.speculative_config.draft_model_config
    head = draft.hf_config
    head_class = draft._model_info.architecture
    if head_class not in _HEAD_CLASSES:
        raise refusal(
            "architectures",
            draft.architectures,
            f"{draft.model} is no EAGLE-3 head with Llama or Qwen3 layers",
            'set "model" in speculative_config to such a head',
        )
    check_layers(vllm_config)
    _check_sizes(head, target, tree.tree_width)
    taps = _check_taps(head, head_class, target)
    fc_input = target.get_hidden_size() * len(taps)
    folder = Path(draft.model).expanduser()
    shapes = tensor_shapes(folder)
    check_parallel(tree, head, head_class, shapes, fc_input)
    _check_weights(folder, shapes, head, target, fc_input)
    warn_of_short_head(vllm_config)


def _check_sizes(head: "PretrainedConfig", target: "ModelConfig", tree_width: int) -> None:
    hidden = getattr(head, "target_hidden_size", None) or head.hidden_size
    size, tokens = target.get_hidden_size(), target.get_vocab_size()
    for key, value, of_target, problem in (
        ("target_hidden_size", hidden, size, f"the target's hidden size is {size}"),
        ("vocab_size", head.vocab_size, tokens, f"the target's vocabulary has {tokens} tokens"),
    ):
        if value != of_target:
            raise refusal(key, value, problem, _TRAINED)
    drafted = _draft_vocabulary(head)
    if drafted > head.vocab_size:
        problem = f"the draft vocabulary is larger than vocab_size={head.vocab_size}"
        raise refusal("draft_vocab_size", drafted, problem, "mend the head's config.json")
    if tree_width > drafted:
        problem = f"the head's draft vocabulary has {drafted} tokens"
        raise refusal("tree_width", tree_width, problem, f'set "tree_width" to {drafted} or less')


def _draft_vocabulary(head: "PretrainedConfig") -> int:
    return getattr(head, "draft_vocab_size", None) or head.vocab_size


def _check_taps(
    head: "PretrainedConfig", head_class: str, target: "ModelConfig"
) -> tuple[int, ...]:
    """The layers whose inputs the head reads: in range, distinct, as many as its fc expects."""
    eagle_config = getattr(head, "eagle_config", None) or {}
    if not eagle_config.get("use_aux_hidden_state", True):
        raise refusal(
            "use_aux_hidden_state",
            False,
            "the head reads no taps of the target",
            "use an EAGLE-3 head",
        )
    layers = target.get_total_num_hidden_layers()
    named = getattr(head, TAPS, None) or eagle_config.get(TAPS)
    name_them = f"name the taps the head was trained with in its config.json, as {TAPS!r}"
    if named is not None and not isinstance(named, (list, tuple)):
        raise refusal(TAPS, named, "taps are a list of layer numbers", name_them)
    # vLLM's default, SupportsEagle3: two layers in, the middle, three before the end.
    taps = tuple(named) if named else (2, layers // 2, layers - 3)
    where = "" if named else " (vLLM's default, as the head's config.json names none)"
    expected, mend = _tap_count(head, head_class, eagle_config), name_them
    if any(isinstance(tap, bool) or not isinstance(tap, int) for tap in taps):
        problem = "taps are layer numbers"
    elif not all(0 <= tap <= layers for tap in taps):
        problem = f"the target has taps 0 to {layers}{where}"
    elif len(set(taps)) != len(taps):
        problem = f"taps repeat on a target of {layers} layers{where}"
    elif len(taps) != expected:
        problem = f"vLLM builds this head for {expected} taps"
        mend = f'name {expected} taps, or set "num_aux_hidden_states" to {len(taps)} '
        mend += "in the head's config.json"
    else:
        return taps
    raise refusal(TAPS, list(taps), problem, mend)


def _tap_count(head: "PretrainedConfig", head_class: str, eagle_config: dict[str, Any]) -> int:
    """How many taps vLLM builds fc for: its Llama head overlooks the top-level list."""
    counts: tuple[str, ...] = ("num_aux_hidden_states",)
    named = eagle_config.get(TAPS)
    if head_class == "Eagle3Qwen3ForCausalLM":
        counts = ("num_aux_layers", "num_aux_hidden_states")
        named = getattr(head, TAPS, None) or named
    for key in counts:
        if getattr(head, key, None) is not None:
            return getattr(head, key)
    return len(named) if named else _DEFAULT_TAP_COUNT


def _check_weights(
    folder: Path,
    shapes: dict[str, tuple[int, ...]],
    head: "PretrainedConfig",
    target: "ModelConfig",
    fc_input: int,
) -> None:
    """Compare a local head's tensors with its config; heads on the hub are checked by vLLM."""
    if not shapes:
        return
    _check_fc(folder, shapes, head, fc_input)
    _check_vocabulary_map(shapes, head)
    check_layer_weights(shapes, head)
    if "embed_tokens.weight" not in shapes and head.hidden_size != target.get_hidden_size():
        raise refusal(
            "hidden_size",
            head.hidden_size,
            "the head has no embed_tokens, and shares the target's, "
            f"whose hidden size is {target.get_hidden_size()}",
            _TRAINED,
        )


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """By name, without "model." in front, over all `*.safetensors`; empty where there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                shapes[name.removeprefix("model.")] = tuple(file.get_slice(name).get_shape())
    return shapes


def _check_fc(
    folder: Path, shapes: dict[str, tuple[int, ...]], head: "PretrainedConfig", fc_input: int
) -> None:
    # A quantized head keeps fc under other names and packed shapes; vLLM reads those.
    if not any(name.startswith("fc.") for name in shapes):
        raise refusal(
            "model",
            str(folder),
            "the checkpoint has no fc weight, so it is no EAGLE-3 head",
            'set "model" in speculative_config to an EAGLE-3 head',
        )
    expected = (head.hidden_size, fc_input)
    if shapes.get("fc.weight", expected) != expected:
        raise refusal(
            "fc.weight",
            shapes["fc.weight"],
            f"hidden size and taps ask for {expected}",
            f"name in the head's config.json the taps it was trained with ({TAPS!r}), "
            f"or {_TRAINED}",
        )


def _check_vocabulary_map(shapes: dict[str, tuple[int, ...]], head: "PretrainedConfig") -> None:
    """Raises ValueError: whatever does not fit, draft_vocab_size is what says otherwise."""
    vocabulary, d2t = _draft_vocabulary(head), shapes.get("d2t")
    rows = shapes.get("lm_head.weight", (head.vocab_size,))[0]
    mend = "mend draft_vocab_size in its config.json"
    if vocabulary == head.vocab_size and d2t is not None:
        problem = "the head has a vocabulary map d2t, yet drafts from the whole vocabulary"
        mend = f'set "draft_vocab_size" in its config.json to {d2t[0]}, or drop d2t'
    elif vocabulary != head.vocab_size and d2t != (vocabulary,):
        problem = f"the head's vocabulary map d2t has shape {d2t}, not {(vocabulary,)}"
        mend = f"export the head with its d2t, or {mend}"
    elif rows != vocabulary:
        problem = f"the head's lm_head has {rows} rows"
    else:
        return
    raise refusal("draft_vocab_size", vocabulary, problem, mend)
