# SPDX-License-Identifier: Apache-2.0
"""Which attention the layers of target and head are built with, and on which pages."""

import json
import logging
import shutil
from functools import partial

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention import selector
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.spec_decode.eagle import EagleProposer

from vllm_eagle_pangu.engine.loaded_layers import NULL_BLOCK
from vllm_eagle_pangu.kernels.tree_attention import PagedKV
from vllm_eagle_pangu.measure.engine import Engine
from vllm_eagle_pangu.measure.lossless import drawn, judged, prefilled

pytestmark = pytest.mark.engine

SHAPE = (2, 3, 6)
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 4}
PROMPTS = [list(b"the quick brown fox"), list(range(40, 120))]


def test_a_head_on_vllm_s_own_attention_is_refused_at_load(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """On sm_100 the draft layers got FLASHINFER, and nothing looked."""
    from vllm.distributed import cleanup_dist_env_and_memory

    load = EagleProposer._get_model

    def load_on_vllm_s(self):
        ours = AttentionBackendEnum.CPU_ATTN.get_path()
        AttentionBackendEnum.CPU_ATTN.clear_override()
        selector._cached_get_attn_backend.cache_clear()
        try:
            return load(self)
        finally:
            register_backend(AttentionBackendEnum.CPU_ATTN, ours)
            selector._cached_get_attn_backend.cache_clear()

    monkeypatch.setattr(EagleProposer, "_get_model", load_on_vllm_s)
    try:
        with (
            pytest.raises(ValueError, match="attention_backend='CPU_ATTN': the head's layer ") as e,
            engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SMALL),
        ):
            pass
    finally:
        cleanup_dist_env_and_memory()
    assert "CPUAttentionBackendImpl, on which tree attention does not stand" in str(e.value)
    assert '"attention_backend" in speculative_config' in str(e.value)


def pretend(monkeypatch, amx: bool) -> list[str]:
    """vLLM computes its instruction set as on a machine with AMX, or without; nothing else learns
    of it. Holds what it computed."""
    build = CPUAttentionMetadataBuilder.__init__
    computed = []

    def init(self, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
            build(self, *args, **kwargs)
        computed.append(self.isa)

    monkeypatch.setattr(CPUAttentionMetadataBuilder, "__init__", init)
    return computed


@pytest.fixture
def pretended_amx(monkeypatch):
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("vLLM's build that writes pages for AMX is the one for AVX512-BF16")
    return pretend(monkeypatch, amx=True)


@pytest.fixture
def lines():
    """What our CPU attention says at INFO, things said once in a process included.

    By a filter: the first engine of a process configures vLLM's loggers anew, without handlers.
    """
    import vllm.logger

    said = []

    def note(record):
        said.append((record.levelname, record.getMessage()))
        return True

    logger = logging.getLogger("vllm.vllm_eagle_pangu.engine.cpu_attention")
    vllm.logger._print_info_once.cache_clear()
    logger.addFilter(note)
    yield said
    logger.removeFilter(note)


@pytest.fixture
def amx_op_on_vec(monkeypatch):
    """vLLM's attention op for AMX, which needs such a CPU: its "vec" does it on unpacked pages.

    Its op that writes pages needs none, so they lie as it packs them. Holds the sets asked for.
    """
    plan, attend = ops.cpu_attn_get_scheduler_metadata, ops.cpu_attention_with_kv_cache
    asked = []

    def plan_for_vec(*, isa, **call):
        asked.append(isa)
        return plan(**call, isa="vec")

    def attend_unpacked(*, key_cache, value_cache, block_table, **call):
        used, table = block_table.clamp(0, len(key_cache) - 1).unique(return_inverse=True)
        shape = (len(used), *key_cache.shape[1:3], 2 * key_cache.shape[3])
        packed = torch.cat((key_cache[used], value_cache[used]), dim=2).view(shape)
        key, value = PagedKV.of_amx_tiles(packed).read(slice(None))
        key = key.mT.reshape(key.shape)
        key, value = torch.cat((key, value), dim=2).chunk(2, dim=2)
        attend(**call, key_cache=key, value_cache=value, block_table=table.int())

    monkeypatch.setattr(ops, "cpu_attn_get_scheduler_metadata", plan_for_vec)
    monkeypatch.setattr(ops, "cpu_attention_with_kv_cache", attend_unpacked)
    return asked


def test_trees_are_decoded_on_pages_that_vllm_packs_for_amx(
    engine, pair, heldout_prompts, tree_config_of, pretended_amx, amx_op_on_vec, lines, monkeypatch
):
    """Attention of all layers went without AMX. The same tokens as on pages of "vec"."""
    config, outputs = tree_config_of(pair[1], SHAPE), []
    prompts = [prompt for prompt in heldout_prompts if len(prompt) < 200][:3]
    for isa in ("amx", "vec"):
        with engine(pair[0], config, dtype="bfloat16", **SMALL) as trees:
            layers = trees.runner.compilation_config.static_forward_context.values()
            assert {layer.isa for layer in layers} == {isa}
            assert not any(layer.kv_cache[NULL_BLOCK].any() for layer in layers)
            outputs.append(trees.generate(prompts, max_tokens=48))
        monkeypatch.undo()
        pretend(monkeypatch, amx=False)
    assert pretended_amx and set(pretended_amx) == {"amx"} == set(amx_op_on_vec)
    assert not [line for line in lines if "without AMX" in line[1]]
    assert outputs[0] == outputs[1]


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="a machine without AMX")
def test_beside_vllm_s_own_op_for_amx_trees_say_what_plain_decoding_says(
    pair, heldout_prompts, tree_config_of
):
    """But where rounding alone could have it otherwise."""
    shortest = sorted(heldout_prompts, key=len)[:8]
    options = {**SMALL, "enforce_eager": True, "logprobs_mode": "raw_logits", "dtype": "bfloat16"}
    target, config = str(pair[0]), tree_config_of(pair[1], SHAPE)
    with Engine(target, None, **options) as llm:
        plain, low = drawn(llm, shortest, 48)
    with Engine(target, config, **options) as llm:
        layers = llm.runner.compilation_config.static_forward_context.values()
        assert {layer.isa for layer in layers} == {"amx"}
        outputs = llm.generate(shortest, max_tokens=48, ignore_eos=True)
    with Engine(target, None, **options | {"dtype": "float32"}) as llm:
        differing = [(i, out) for i, out in enumerate(outputs) if out != plain[i]]
        rounding, judgements = judged(partial(prefilled, llm), shortest, plain, low, differing)
    assert all(one.near_tie for one in judgements), (rounding, judgements)


def test_pages_that_do_not_read_as_written_for_amx_go_without_it_and_that_is_said_once(
    engine, tiny_pangu, tiny_head, tree_config_of, pretended_amx, lines, monkeypatch
):
    """It was switched off for every layer, unsaid."""
    of_amx_tiles = PagedKV.of_amx_tiles
    monkeypatch.setattr(PagedKV, "of_amx_tiles", lambda cache: of_amx_tiles(cache.clone()))
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), dtype="bfloat16", **SMALL) as trees:
        assert pretended_amx and set(pretended_amx) == {"amx"}
        layers = trees.runner.compilation_config.static_forward_context.values()
        assert {layer.isa for layer in layers} == {"vec"}
        assert all(len(tokens) == 12 for tokens in trees.generate(PROMPTS, max_tokens=12))
    about_amx = [line for line in lines if "without AMX" in line[1]]
    assert [level for level, _ in about_amx] == ["INFO"]


def test_a_cache_of_the_model_s_own_dtype_by_name_decodes_as_one_of_auto(
    engine, tiny_llama, tiny_head, tree_config_of, tmp_path
):
    """`kv_cache_dtype=bfloat16` was refused for a bfloat16 model.

    The same choice is the mend for a checkpoint that would have its cache in fp8.
    """
    fp8 = shutil.copytree(tiny_llama, tmp_path / "fp8")
    config = json.loads((fp8 / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {},
        "kv_cache_scheme": {
            "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False,
            "symmetric": True,
        },
    }  # fmt: skip
    (fp8 / "config.json").write_text(json.dumps(config))
    outputs = []
    for target, kv_cache_dtype in (
        (tiny_llama, "auto"),
        (tiny_llama, "bfloat16"),
        (fp8, "bfloat16"),
    ):
        options = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype, **SMALL}
        with engine(target, tree_config_of(tiny_head, SHAPE), **options) as trees:
            outputs.append(trees.generate(PROMPTS, max_tokens=16))
    assert outputs[0] == outputs[1] == outputs[2]
