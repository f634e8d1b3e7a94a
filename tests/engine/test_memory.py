# SPDX-License-Identifier: Apache-2.0
"""Memory: trees take theirs before vLLM sizes the KV cache, and let go of a cache that is freed."""

import logging
import os
from contextlib import contextmanager

import psutil
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list, get_memory_node_info

from vllm_eagle_pangu.engine.cpu_attention import TreeCPUAttentionImpl
from vllm_eagle_pangu.engine.cpu_worker import TreeCPUModelRunner, TreeCPUWorker
from vllm_eagle_pangu.kernels.kv_commit import CommitLayers
from vllm_eagle_pangu.kernels.tree_attention import PagedKV

from ..tiny_pair import DRAFT_VOCAB, VOCAB, tiny_target, write_tiny_head, write_tiny_llama

pytestmark = pytest.mark.engine

PROMPTS = [list(b"the quick brown fox"), list(b"over")]
SHAPE = (3, 3, 9)
SMALL = {"max_model_len": 128, "max_num_batched_tokens": 128, "max_num_seqs": 4}


def resident() -> int:
    """Bytes."""
    return psutil.Process(os.getpid()).memory_info().rss


def attention_layers(runner) -> list:
    return list(runner.compilation_config.static_forward_context.values())


def scratch_bytes(runner) -> int:
    scratches = [layer.impl.scratch for layer in attention_layers(runner)]
    return sum(scratch.key.nbytes + scratch.value.nbytes for scratch in scratches)


def storages(runner) -> list[StorageWeakRef]:
    """The memory of the KV cache, not kept alive."""
    caches = [layer.kv_cache for layer in attention_layers(runner)]
    return [StorageWeakRef(cache.untyped_storage()) for cache in caches]


@pytest.fixture(scope="module")
def wide_pair(tmp_path_factory):
    """A target with 96 KiB of K/V a token, and its head."""
    folder = tmp_path_factory.mktemp("wide")
    changes = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
    target = write_tiny_llama(folder / "target", **changes)
    return target, write_tiny_head(folder / "head", tiny_target(bias=False, **changes))


def test_scratch_and_kv_cache_stay_within_the_memory_that_vllm_was_given(
    engine, wide_pair, tree_config_of, monkeypatch
):
    """The scratch was allocated after vLLM had given all that is left to the KV cache."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    node = get_allowed_cpu_list()[0].numa_node
    share = (resident() + (3 << 29)) / get_memory_node_info(node).total_memory
    settings = {
        "max_num_seqs": 240,
        "max_num_batched_tokens": 4096,
        "max_model_len": 256,
        "gpu_memory_utilization": share,
    }
    with engine(wide_pair[0], tree_config_of(wide_pair[1], (4, 5, 16)), **settings) as trees:
        assert trees.generate(PROMPTS, max_tokens=8)
        # Every page that was given out becomes resident.
        for layer in attention_layers(trees.runner):
            layer.kv_cache.fill_(1)
            layer.impl.scratch.key.fill_(1)
            layer.impl.scratch.value.fill_(1)
        worker = trees.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        scratch = scratch_bytes(trees.runner)
        beyond = resident() - worker.requested_cpu_memory
    # What the first steps allocate anew is small beside the scratch; vLLM does not count it either.
    assert scratch > 300 << 20
    assert beyond < scratch // 4, f"{beyond >> 20} MiB beyond, scratch {scratch >> 20} MiB"


def test_the_profile_run_sees_the_logits_of_all_rows_of_a_step(
    engine, tiny_pangu, tiny_head, tree_config_of
):
    """vLLM's dummy run samples a row per request; a step of trees has M+1, and the head W."""
    settings = SMALL | {"max_num_batched_tokens": 256}
    with engine(tiny_pangu, tree_config_of(tiny_head, (8, 6, 48)), **settings) as trees:
        runner = trees.runner
        hidden = torch.zeros(4, runner.model_config.get_hidden_size())
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            runner._dummy_sampler_run(hidden)
    assert peak_bytes(profile) > 4 * (4 * 49 * VOCAB + 4 * 8 * DRAFT_VOCAB)


def peak_bytes(profile: torch.profiler.profile) -> int:
    """The most that was allocated at once while `profile` ran."""
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    allocated = peak = 0
    for _, change in sorted(changes):
        allocated += change
        peak = max(peak, allocated)
    return peak


@pytest.mark.parametrize("strided_pages", [False, True], ids=["views", "commit table"])
def test_the_kv_cache_that_vllm_profiles_with_is_freed_and_so_is_the_last_one(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch, strided_pages
):
    """Our views of its pages kept the first cache, then both."""
    freed = []
    determine = TreeCPUWorker.determine_available_memory

    def as_on_a_gpu(worker):
        """A GPU worker profiles its CUDA graphs with a small cache before the real one."""
        runner = worker.model_runner
        runner.compilation_config.max_cudagraph_capture_size = 1
        runner._init_minimal_kv_cache_for_profiling()
        first = storages(runner)
        runner._cleanup_profiling_kv_cache()
        freed.extend(storage.expired() for storage in first)
        return determine(worker)

    monkeypatch.setattr(TreeCPUWorker, "determine_available_memory", as_on_a_gpu)
    monkeypatch.setattr(TreeCPUModelRunner, "strided_pages", strided_pages)
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SMALL) as trees:
        runner = trees.runner
        if not strided_pages:
            assert trees.generate(PROMPTS, max_tokens=8)
        last = storages(runner)
        assert not any(storage.expired() for storage in last)
    assert len(freed) == 4 and all(freed)
    assert all(storage.expired() for storage in last), "while the runner lives"
    assert runner.step is not None


def test_the_commit_table_lies_outside_of_vllms_memory_pools(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """Sleep mode drops what lies in them (on vLLM 0.23), and the table holds addresses."""
    pools, made = [], []

    @contextmanager
    def pool(worker, tag):
        pools.append(tag)
        yield
        pools.remove(tag)

    finish = CommitLayers.__post_init__

    def note(layers):
        made.append(list(pools))
        finish(layers)

    monkeypatch.setattr(TreeCPUWorker, "_maybe_get_memory_pool_context", pool)
    monkeypatch.setattr(CommitLayers, "__post_init__", note)
    monkeypatch.setattr(TreeCPUModelRunner, "strided_pages", True)
    with engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SMALL):
        assert made == [[]]


def test_the_sizes_are_stated_at_start_up_and_added_to_what_vllm_counts(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """Rows of the scratch: (M+1) x requests, unless a batch has no room for as many, and W*D."""
    # vLLM's GPU runner has it; 0.23 counts nothing else that was allocated before its profile run.
    monkeypatch.setattr(TreeCPUModelRunner, "model_memory_usage", 1000, raising=False)
    settings = SMALL | {"max_num_seqs": 13, "max_num_batched_tokens": 140}
    said = []
    # A filter: the first engine of a process configures vLLM's loggers anew, without handlers.
    logger = logging.getLogger("vllm.vllm_eagle_pangu.engine.step_memory")
    logger.addFilter(said.append)
    try:
        with engine(tiny_pangu, tree_config_of(tiny_head, (3, 4, 11)), **settings) as trees:
            counted = trees.runner.model_memory_usage
            assert counted == 1000 + scratch_bytes(trees.runner)
    finally:
        logger.removeFilter(said.append)
    (line,) = [record.getMessage() for record in said]
    assert "on top of the 1024.0 MiB given for the KV cache" in line
    assert "target 0.1 MiB (140 rows in each of 3 layers)" in line
    assert "drafter 0.0 MiB (156 rows in each of 1 layers)" in line
    assert "0.1 MiB (140 rows) of the target, 0.0 MiB (39 rows) of the head" in line


def test_pages_of_the_draft_layers_are_proved_readable_too(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """Only the target's were: a head's layer in another layout was read all the same."""
    page_views = TreeCPUAttentionImpl.page_views

    def of_another_layout(self, layer, cache):
        pages = page_views(self, layer, cache)
        if layer.layer_name.startswith("model.layers.3."):
            return PagedKV(key=pages.value, value=pages.key)
        return pages

    monkeypatch.setattr(TreeCPUAttentionImpl, "page_views", of_another_layout)
    with (
        pytest.raises(ValueError, match=r"KV pages of model\.layers\.3\."),
        engine(tiny_pangu, tree_config_of(tiny_head, SHAPE), **SMALL),
    ):
        pass
