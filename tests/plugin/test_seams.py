# SPDX-License-Identifier: Apache-2.0
"""Every place where we touch vLLM still has the name and signature that we rely on."""

from dataclasses import fields
from inspect import Parameter, signature

import pytest
from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs

from vllm_eagle_pangu.compat.engine_args import FLAT_KEYS, host_keys
from vllm_eagle_pangu.config import ATTRIBUTE, MAX_NODES, TreeConfig
from vllm_eagle_pangu.engine import head_fit, refusals, target_fit


def parameters(function) -> list[str]:
    return [name for name, kind in signature(function).parameters.items() if name != "self"]


def test_the_patched_methods_keep_their_signatures():
    speculative = EngineArgs.create_speculative_config
    assert parameters(speculative) == ["target_model_config", "target_parallel_config"]
    engine = signature(EngineArgs.create_engine_config).parameters
    assert all(
        parameter.default is not Parameter.empty
        for name, parameter in engine.items()
        if name != "self"
    )


def test_engine_args_have_every_field_that_we_read():
    known = {field.name for field in fields(EngineArgs)}
    read = {"speculative_config", "model", *FLAT_KEYS, *refusals._ENGINE_OPTIONS}
    assert read <= known


def test_what_trees_need_of_engine_args_is_their_default():
    """Defaults are never refused, so that another one has to be seen here."""
    defaults = refusals.defaults_of(EngineArgs)
    for option in refusals._ENGINE_OPTIONS:
        assert defaults[option] in (None, False, "auto", 1), option


def test_the_keys_that_we_refuse_are_vllm_s_and_by_default_off():
    assert refusals._HOST_KEYS.keys() <= host_keys()
    defaults = refusals.defaults_of(SpeculativeConfig)
    of_suffix = {key for key in refusals._HOST_KEYS if key.startswith("suffix_decoding_")}
    for key in refusals._HOST_KEYS.keys() - of_suffix:
        assert defaults[key] in (None, False, "standard", "greedy"), key
    assert all(isinstance(defaults[key], int | float) for key in of_suffix)


def test_vllm_has_no_key_of_ours_and_no_field_of_our_name():
    # These two mean to users what they mean to vLLM.
    shared = {"num_speculative_tokens", "parallel_drafting"}
    ours = {field.name for field in fields(TreeConfig)} - shared
    assert not (ours | {ATTRIBUTE}) & {field.name for field in fields(SpeculativeConfig)}


@pytest.mark.parametrize("flag", target_fit._FLAGS)
def test_model_config_has_the_flag(flag):
    assert hasattr(ModelConfig, flag)


def test_the_node_limit_is_vllm_s():
    from vllm.v1.sample.rejection_sampler import MAX_SPEC_LEN

    assert MAX_NODES == MAX_SPEC_LEN


def test_the_registry_resolves_and_names_classes():
    from vllm.model_executor.models.interfaces import supports_eagle3
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
    from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM
    from vllm.model_executor.models.registry import ModelRegistry

    assert parameters(ModelRegistry.resolve_model_cls) == ["architectures", "model_config"]
    assert parameters(supports_eagle3) == ["model"]
    assert Eagle3LlamaForCausalLM and Eagle3Qwen3ForCausalLM


def test_attention_backends_can_be_replaced_and_the_selector_forgets():
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    assert parameters(register_backend)[:2] == ["backend", "class_path"]
    assert callable(selector._cached_get_attn_backend.cache_clear)
    assert callable(AttentionBackendEnum.CPU_ATTN.clear_override)


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3ForCausalLM"]
)
def test_vllm_looks_a_head_up_under_the_name_that_we_expect(name):
    from transformers import LlamaConfig
    from vllm.transformers_utils.configs.eagle import EAGLEConfig

    vllm_s = EAGLEConfig(LlamaConfig(architectures=[name]), method="eagle3", model_type="eagle")
    assert vllm_s.architectures == [head_fit._as_eagle3(name)]


def test_the_runner_choice_can_be_read():
    from vllm import envs

    assert isinstance(VllmConfig.use_v2_model_runner, property)
    assert "VLLM_USE_V2_MODEL_RUNNER" in envs.environment_variables


def test_the_scheduler_counts_tokens_behind_the_hook_where_trees_join_a_step():
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    names = Scheduler.schedule.__code__.co_names
    assert "num_computed_tokens" in Scheduler._update_after_schedule.__code__.co_names
    assert "_update_after_schedule" in names and "num_lookahead_tokens" in names
    assert "reserved_blocks" in parameters(KVCacheManager.allocate_slots)


def test_the_cpu_worker_names_its_runner_where_ours_takes_its_place():
    from vllm.v1.worker import cpu_worker

    assert parameters(cpu_worker.CPUWorker.init_device) == []
    assert "CPUModelRunner" in cpu_worker.CPUWorker.init_device.__code__.co_names


def test_vllm_s_sampler_asks_a_holder_of_budgets_only_what_our_rows_answer():
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder as Holder

    from vllm_eagle_pangu.engine.request_sampling import _BudgetsOfRows

    public = {name for name in vars(Holder) if not name.startswith("_")}
    asked = public & set(Sampler.apply_logits_processors.__code__.co_names)
    assert asked and asked <= set(vars(_BudgetsOfRows))
    assert parameters(Holder.apply_to_logits) == parameters(_BudgetsOfRows.apply_to_logits)
    assert "_state" in Holder.apply_to_logits.__code__.co_names


def test_min_tokens_can_be_applied_to_rows_of_a_request_s_draft():
    from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor as MinTokens

    assert parameters(MinTokens.apply_with_spec_decode) == ["logits", "num_draft_tokens"]
    assert "min_toks" in MinTokens.apply_with_spec_decode.__code__.co_names


def overrides():
    """Every method of vLLM's that the engine overrides, beside vLLM's own."""
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    from vllm_eagle_pangu.engine import (
        attention,
        cpu_attention,
        cpu_worker,
        runner,
        runner_start,
        scheduler,
    )

    for ours, vllm_s in (
        (runner.TreeRunnerMixin, CPUModelRunner),
        (runner_start.TreeRunnerStart, CPUModelRunner),
        (cpu_worker.TreeCPUModelRunner, CPUModelRunner),
        (cpu_worker.TreeCPUWorker, CPUWorker),
        (scheduler.TreeScheduler, Scheduler),
        (attention.TreeBackendMixin, cpu_attn.CPUAttentionBackend),
        (cpu_attention.TreeCPUAttentionMetadataBuilder, cpu_attn.CPUAttentionMetadataBuilder),
        (cpu_attention.TreeCPUAttentionImpl, cpu_attn.CPUAttentionBackendImpl),
    ):
        for name in vars(ours).keys() & set(dir(vllm_s)):
            if name == "__init__" or (name not in dir(object) and callable(getattr(ours, name))):
                yield f"{ours.__name__}.{name}", getattr(ours, name), getattr(vllm_s, name)


def test_every_override_takes_vllm_s_parameters():
    checked = 0
    for name, ours, vllm_s in overrides():
        kinds = {parameter.kind for parameter in signature(ours).parameters.values()}
        if Parameter.VAR_POSITIONAL not in kinds:
            assert parameters(ours) == parameters(vllm_s), name
        checked += 1
    assert checked >= 10
