# SPDX-License-Identifier: Apache-2.0
"""On a device, a step neither waits for it nor mixes its tensors with the host's.

The step runs in a real engine whose buffers pretend to lie on a device: see `pretend_device.py`.
"""

import dataclasses

import pytest
import torch

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.engine import runner as engine_runner
from vllm_eagle_pangu.engine import sampling
from vllm_eagle_pangu.engine.attention import TreeAttentionMixin
from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
from vllm_eagle_pangu.engine.runner_start import TreeRunnerStart
from vllm_eagle_pangu.kernels import indices
from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.tree_prune import cpu_impl

from . import pretend_device
from .pretend_device import (
    DeviceTensor,
    HostSyncError,
    MixedDevicesError,
    PageableCopyError,
    PretendDevice,
    freely,
    strictly,
)

pytestmark = pytest.mark.engine

PROMPTS = [list(b"the quick brown fox jumps"), list(b"over"), list(range(40, 120))]


class DeviceState:
    """The attributes that a GPU runner keeps on its device."""

    def __init__(self, runner) -> None:
        self.places = [(runner, "positions"), (runner, "seq_lens")]
        tables = runner.input_batch.block_table.block_tables
        buffers = [*vars(runner).values(), *(t for table in tables for t in vars(table).values())]
        self.places += [
            (buffer, "gpu")
            for buffer in buffers
            if isinstance(getattr(buffer, "gpu", None), torch.Tensor)
        ]
        self.on_device()

    def on_device(self) -> None:
        for owner, name in self.places:
            setattr(owner, name, pretend_device.to_device(getattr(owner, name)))

    def on_host(self) -> None:
        for owner, name in self.places:
            setattr(owner, name, pretend_device.to_host(getattr(owner, name)))

    def host_for(self, function):
        """`function` of vLLM's, with the state on the host while it runs."""

        def run(*args, **kwargs):
            self.on_host()
            try:
                return pretend_device.to_device(function(*args, **kwargs))
            finally:
                self.on_device()

        return run


def move_to_device(runner, patch) -> None:
    """The state of a GPU runner, and a launch for every kernel and every call of vLLM's."""
    state = DeviceState(runner)
    patch.setattr(type(runner), "emits_first", TreeRunnerMixin.emits_first)
    vllm_runner = behind(TreeRunnerStart, type(runner))
    for name in ("_prepare_inputs", "_build_attention_metadata"):
        patch.setattr(vllm_runner, name, state.host_for(getattr(vllm_runner, name)))
    head, step = runner.draft_head, runner.step
    if head.target_ids is not None:
        head.target_ids = DeviceTensor(head.target_ids)
    layers = runner.compilation_config.static_forward_context.values()
    for layer in layers:
        layer.impl.scratch = pretend_device.to_device(layer.impl.scratch)
    # Pages stay on the host, where each layer writes its own.
    runner.pages.forget()

    of = Op.of
    patch.setattr(Op, "of", lambda *a, **k: pretend_device.launched(of(*a, **k)))
    # Tensor subclasses cannot return views in inference mode.
    patch.setattr(torch.inference_mode, "__enter__", lambda self: None)
    patch.setattr(torch.inference_mode, "__exit__", lambda self, *error: None)
    patch.setattr(engine_runner, "view_of", strictly(engine_runner.view_of))
    patch.setattr(engine_runner, "verify_rows", strictly(engine_runner.verify_rows))
    patch.setattr(step, "before", strictly(step.before))
    for name in ("_write_tree_rows", "_sample", "propose_draft_token_ids"):
        patch.setattr(runner, name, strictly(getattr(runner, name)))
    patch.setattr(runner, "_store_trees", freely(runner._store_trees))
    patch.setattr(runner, "_to_list", lambda tensor: tensor.cpu().tolist())
    patch.setattr(runner.sampler, "forward", freely(runner.sampler.forward))
    metadata = runner.input_batch._make_sampling_metadata
    patch.setattr(
        runner.input_batch, "_make_sampling_metadata", lambda: parameters_on_device(metadata())
    )
    patch.setattr(runner, "_model_forward", forward_on_host(runner._model_forward))
    patch.setattr(runner.model, "compute_logits", forward_on_host(runner.model.compute_logits))
    patch.setattr(head, "rowwise", False)
    patch.setattr(head, "run", HeadOnHost(head.run))
    patch.setattr(head, "logits", forward_on_host(head.logits))
    patch.setattr(
        head.model, "combine_hidden_states", forward_on_host(head.model.combine_hidden_states)
    )
    (group,) = head.proposer.draft_attn_groups
    builder = group.get_metadata_builder()
    patch.setattr(builder, "build", forward_on_host(builder.build))
    patch_attention(type(layers_impl(layers)), patch)


def parameters_on_device(metadata):
    """Its tensors, as on a GPU; the lists stay those that the batch writes to."""
    tensors = {k: v for k, v in vars(metadata).items() if isinstance(v, torch.Tensor)}
    return dataclasses.replace(metadata, **pretend_device.to_device(tensors))


def behind(mixin: type, composed: type) -> type:
    """The class of vLLM's that `mixin` wraps in `composed`."""
    return composed.__mro__[composed.__mro__.index(mixin) + 1]


def layers_impl(layers):
    return next(iter(layers)).impl


def patch_attention(impl: type, patch) -> None:
    """Ours runs strictly on device tensors; vLLM's, and its cache write, on the host."""
    vllm_impl = behind(TreeAttentionMixin, impl)
    ours, theirs = impl.forward, vllm_impl.forward

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, **scales):
        if attn_metadata.tree is not None:
            pretend_device.require_on_device(attn_metadata.tree)
        tensors = pretend_device.to_device((query, key, value, kv_cache))
        with pretend_device.strict():
            output = pretend_device.to_device(output)
            return ours(self, layer, *tensors, attn_metadata, output, **scales)

    patch.setattr(impl, "forward", forward)
    patch.setattr(vllm_impl, "forward", forward_on_host(theirs))
    patch.setattr(impl, "do_kv_cache_update", forward_on_host(impl.do_kv_cache_update))


def forward_on_host(function):
    """Something of vLLM's, which computes on the host here and would run on the device there."""

    def run(*args, **kwargs):
        with pretend_device.strict(False):
            out = function(*pretend_device.to_host(args), **pretend_device.to_host(kwargs))
        return pretend_device.to_device(out)

    return run


class HeadOnHost:
    """The head's pass as one launch; its attention layers check the metadata that reaches them."""

    def __init__(self, run) -> None:
        self.run = run

    def __call__(self, tokens, positions, hidden, metadata, slots):
        rows = (tokens, positions, hidden, slots)
        pretend_device.require_on_device(rows)
        with pretend_device.strict(False):
            *rows, slots = pretend_device.to_host(rows)
            return pretend_device.to_device(self.run(*rows, metadata, slots))


@pytest.fixture
def fresh_indices():
    """Constants cached for the pretended device go with the test."""
    yield
    for made in vars(indices).values():
        if hasattr(made, "cache_clear"):
            made.cache_clear()


@pytest.mark.usefixtures("fresh_indices")
@pytest.mark.parametrize("keys", [{}], ids=str)
def test_a_step_neither_waits_for_the_device_nor_mixes_tensors(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch, keys
):
    small = {"max_model_len": 256, "max_num_batched_tokens": 48, "max_num_seqs": 4}
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9), **keys), **small) as trees:
        expected = trees.generate(PROMPTS, max_tokens=24)
        with monkeypatch.context() as patch, torch.no_grad(), PretendDevice():
            move_to_device(trees.runner, patch)
            assert trees.generate(PROMPTS, max_tokens=24) == expected
            sampled = trees.generate(PROMPTS, max_tokens=24, temperature=0.7, top_k=5)
    assert all(len(tokens) == 24 for tokens in sampled)


@pytest.mark.usefixtures("fresh_indices")
def test_trees_that_follow_latency_wait_for_what_the_scheduler_needs_alone(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    small = {"max_model_len": 256, "max_num_batched_tokens": 48, "max_num_seqs": 4}
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9)), **small) as trees:
        expected = trees.generate(PROMPTS, max_tokens=48)
        # Not launched: on the host.
        direct = {"tree_prune": cpu_impl.tree_prune, "tally_paths": cpu_impl.tally_paths}
        of_host = dataclasses.replace(Ops.bind("cpp"), **direct)
        policy = AdaptiveShapes(TreeShape(3, 3, 9), of_host, on_host=False)
        with monkeypatch.context() as patch, torch.no_grad(), PretendDevice():
            move_to_device(trees.runner, patch)
            # Where the step waits: right behind, `_store_trees` reads what is kept.
            patch.setattr(policy, "keep", freely(policy.keep))
            patch.setattr(trees.runner.step, "policy", policy)
            assert trees.generate(PROMPTS, max_tokens=48) == expected
    assert policy.trees.known_whole and policy.costs.known and policy.belief.information.any()


@pytest.mark.usefixtures("fresh_indices")
def test_only_requests_that_follow_their_path_go_level_by_level(
    engine, tiny_pangu, tiny_head, tree_config_of, monkeypatch
):
    """Regression: one request with penalties made its whole batch wait at each level, and copies
    of indices from pageable memory waited for the target in every batch."""
    from vllm import SamplingParams

    fixed = {"max_tokens": 24, "ignore_eos": True}
    follows_path = [
        SamplingParams(temperature=0.0, repetition_penalty=1.3, **fixed),
        SamplingParams(temperature=0.0, bad_words=["e", "th"], presence_penalty=0.2, **fixed),
        SamplingParams(temperature=0.0, min_tokens=20, stop_token_ids=[10], **fixed),
    ]
    params = [
        SamplingParams(temperature=0.0, logprobs=2, **fixed),
        SamplingParams(temperature=0.8, top_k=5, seed=3, **fixed),
        SamplingParams(temperature=0.0, allowed_token_ids=list(range(20, 120)), **fixed),
        *follows_path,
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in (*PROMPTS, *PROMPTS)]
    small = {"max_model_len": 256, "max_num_batched_tokens": 96, "max_num_seqs": 6}
    with engine(tiny_pangu, tree_config_of(tiny_head, (3, 3, 9)), **small) as trees:

        def texts():
            outputs = trees.llm.generate(prompts, params, use_tqdm=False)
            return [list(output.outputs[0].token_ids) for output in outputs]

        expected, waited_for = texts(), []
        # Made in inference mode, which the pretended device does without: vLLM makes it anew.
        trees.runner.input_batch.allowed_token_ids_mask_cpu_tensor = None

        def wait_for(tokens):
            waited_for.append(tokens.shape[0])
            return pretend_device.to_host(tokens).tolist()

        with monkeypatch.context() as patch, torch.no_grad(), PretendDevice():
            move_to_device(trees.runner, patch)
            patch.setattr(sampling, "wait_for", wait_for)
            patch.setattr(sampling, "links_of", freely(sampling.links_of))
            # Several calls of the sampler where trees are drawn at every row.
            patch.setattr(trees.runner, "_rows_per_draw", lambda: 7)
            got = texts()
    assert max(waited_for) == len(follows_path)
    sampled = 1
    assert len(got.pop(sampled)) == len(expected.pop(sampled))
    assert got == expected


def test_the_pretended_device_tells_pinned_from_pageable_memory():
    numbers = torch.arange(4)
    with PretendDevice(), pretend_device.strict():
        to = pretend_device.DEVICE
        pinned = numbers.pin_memory()
        assert pinned.is_pinned() and pinned[1:].is_pinned() and not numbers.is_pinned()
        assert torch.equal(pretend_device.to_host(pinned.to(to, non_blocking=True)), numbers)
        on_device = torch.zeros(4, dtype=torch.long, device=to)
        assert pretend_device.to_host(on_device.copy_(pinned, non_blocking=True)).sum() == 6
        for pageable in (
            lambda: numbers.to(to),
            lambda: numbers.to(to, non_blocking=True),
            lambda: pinned.to(to),
            lambda: on_device.copy_(pinned),
            lambda: on_device.copy_(numbers, non_blocking=True),
            lambda: on_device + torch.tensor([1, 2, 3, 4], device=to),
            lambda: on_device[[0, 1]],
        ):
            with pytest.raises(PageableCopyError):
                pageable()


def test_the_pretended_device_notices_a_wait_and_a_stray_tensor():
    with PretendDevice(), pretend_device.strict():
        on_device = torch.arange(4, device=pretend_device.DEVICE)
        assert torch.equal(pretend_device.to_host(on_device * 2), torch.tensor([0, 2, 4, 6]))
        for wait in (
            lambda: bool(on_device.any()),
            lambda: on_device[on_device > 1],
            on_device.cpu,
            lambda: on_device.max().item(),
            lambda: on_device.repeat_interleave(on_device),
        ):
            with pytest.raises(HostSyncError):
                wait()
        with pytest.raises(MixedDevicesError):
            on_device + torch.ones(4)
