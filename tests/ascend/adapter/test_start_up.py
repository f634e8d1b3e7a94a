# SPDX-License-Identifier: Apache-2.0
"""What the adapter's classes are, and what is refused, on vllm-ascend's platform."""

import logging

import pytest

from vllm_eagle_pangu.compat import ascend
from vllm_eagle_pangu.config import tree_config
from vllm_eagle_pangu.demo_pair import __file__ as demo_pair

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("on_host")]
DEMO_TARGET = demo_pair.replace("__init__.py", "target")


@pytest.fixture
def config(on_host, trees):
    """`config(**EngineArgs)`: vLLM's finished configuration with a tree of 8 nodes."""
    from vllm.engine.arg_utils import EngineArgs

    from vllm_eagle_pangu.plugin import register

    register()

    def create(nodes=8, additional_config=None, **options):
        args = EngineArgs(
            model=DEMO_TARGET,
            max_model_len=256,
            speculative_config=trees(nodes),
            # vllm-ascend keeps its configuration for the process, unless told not to.
            additional_config={"refresh": True, **(additional_config or {})},
            **options,
        )
        return args.create_engine_config()

    return create


def test_the_platform_gets_our_worker_and_scheduler(config):
    made = config()
    assert made.parallel_config.worker_cls == ascend.PARTS.worker
    assert made.scheduler_config.scheduler_cls == "vllm_eagle_pangu.engine.scheduler.TreeScheduler"
    # What vllm-ascend sets along with its own worker is set.
    assert made.parallel_config.all2all_backend == "flashinfer_all2allv"
    assert not made.scheduler_config.async_scheduling


@pytest.mark.parametrize("said", [False, True])
def test_graphs_are_off_and_one_line_says_so_if_the_user_did_not(config, said):
    from vllm.config import CUDAGraphMode

    said_by_us: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said_by_us.append(record.getMessage())

    handler = Handler()
    logging.getLogger("vllm").addHandler(handler)
    try:
        made = config(enforce_eager=said)
    finally:
        logging.getLogger("vllm").removeHandler(handler)
    assert made.model_config.enforce_eager
    assert made.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    lines = [line for line in said_by_us if "ACL graphs" in line]
    assert len(lines) == (0 if said else 1)


@pytest.mark.parametrize(
    "key, value, options",
    [
        ("prefill_context_parallel_size", 2, {"prefill_context_parallel_size": 2}),
        ("decode_context_parallel_size", 2, {"decode_context_parallel_size": 2}),
        ("async_scheduling", True, {"async_scheduling": True}),
        ("tensor_parallel_size", 2, {"tensor_parallel_size": 2}),
        (
            "scheduler_cls",
            "vllm_ascend.core.scheduler_dynamic_batch.SchedulerDynamicBatch",
            {"additional_config": {"SLO_limits_for_dynamic_batch": 50}},
        ),
        (
            "enable_async_exponential",
            True,
            {"additional_config": {"enable_async_exponential": True}},
        ),
        (
            "enable_balance_scheduling",
            True,
            {"additional_config": {"enable_balance_scheduling": True}},
        ),
        ("enable_reduce_sample", True, {"additional_config": {"enable_reduce_sample": True}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_trees_cannot_do_is_refused_by_name(config, key, value, options):
    with pytest.raises(ValueError, match=rf"eagle_pangu: {key}={value!r}: "):
        config(**options)


@pytest.mark.parametrize(
    "worker",
    [
        "vllm_ascend.xlite.xlite_worker.XliteWorker",
        "vllm_ascend._310p.worker_310p.NPUWorker310",
    ],
)
def test_another_worker_of_vllm_ascends_is_refused_by_name(config, worker):
    from vllm_eagle_pangu.engine.ascend import refusals

    made = config()
    made.parallel_config.worker_cls, made.scheduler_config.scheduler_cls = worker, None
    with pytest.raises(ValueError, match=f"eagle_pangu: worker_cls='{worker}': "):
        refusals.check(made)


@pytest.mark.parametrize("device", ["A5", "_310P"])
def test_other_chips_are_refused_by_name(config, monkeypatch, device):
    from vllm_ascend.utils import AscendDeviceType

    from vllm_eagle_pangu.engine.ascend import refusals

    made = config()
    monkeypatch.setattr(refusals, "get_ascend_device_type", lambda: AscendDeviceType[device])
    with pytest.raises(ValueError, match=f"eagle_pangu: device={device!r}: .* A2 and A3"):
        refusals.check(made)


def test_a_backend_that_is_not_for_grouped_queries_stays(on_host):
    from types import SimpleNamespace

    from vllm_ascend.platform import NPUPlatform

    def chosen(use_mla: bool) -> str:
        config = SimpleNamespace(use_mla=use_mla, use_sparse=False, use_compress=False)
        return NPUPlatform.get_attn_backend_cls(None, config)

    ascend.replace_attention_backend()
    ascend.replace_attention_backend()
    assert chosen(use_mla=False) == ascend.PARTS.attention["CUSTOM"]
    assert chosen(use_mla=True) == "vllm_ascend.attention.mla_v1.AscendMLABackend"


def test_our_methods_stand_before_vllm_ascends_and_those_before_vllms(on_host):
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm_ascend.attention import attention_v1
    from vllm_ascend.spec_decode import AscendEagleProposer
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
    from vllm_ascend.worker.worker import NPUWorker

    from vllm_eagle_pangu.engine.ascend import attention, runner, worker
    from vllm_eagle_pangu.engine.attention import TreeAttentionMixin, TreeBuilderMixin
    from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
    from vllm_eagle_pangu.engine.runner_start import TreeRunnerStart
    from vllm_eagle_pangu.engine.worker import TreeWorkerMixin

    orders = [
        (worker.TreeNPUWorker, TreeWorkerMixin, NPUWorker),
        (runner.TreeNPUModelRunner, TreeRunnerMixin, NPUModelRunner, GPUModelRunner),
        (
            attention.TreeAscendAttentionImpl,
            TreeAttentionMixin,
            attention_v1.AscendAttentionBackendImpl,
        ),
        (
            attention.TreeAscendAttentionMetadataBuilder,
            TreeBuilderMixin,
            attention_v1.AscendAttentionMetadataBuilder,
        ),
        (runner.TreeAscendProposer, AscendEagleProposer),
        (attention.TreeAscendAttentionBackend, attention_v1.AscendAttentionBackend),
    ]
    for ours, *behind in orders:
        places = [ours.__mro__.index(c) for c in (ours, *behind)]
        assert places == sorted(places), ours
    ours = vars(TreeRunnerMixin).keys() | vars(TreeRunnerStart).keys()
    hooks = {name for name in ours if hasattr(NPUModelRunner, name)}
    bypassed = {name for name in hooks if name in vars(runner.TreeNPUModelRunner)}
    # The adapter stands in between where vllm-ascend's order of arguments differs, and to check.
    checked = "initialize_kv_cache"
    assert bypassed - {"__module__", "__doc__"} == {"propose_draft_token_ids", checked}


@pytest.mark.parametrize("nodes", [8, 15, 16, 60])
def test_a_builder_is_made_for_trees_of_any_size(config, nodes):
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder

    from vllm_eagle_pangu.engine.ascend.attention import TreeAscendAttentionMetadataBuilder

    made = config(nodes)
    spec = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=64, dtype=torch.float32)
    given = (spec, ["model.layers.0.self_attn.attn"], made, torch.device("cpu"))
    if nodes > 15:
        with pytest.raises(AssertionError, match="limit of 16"):
            AscendAttentionMetadataBuilder(*given)
    builder = TreeAscendAttentionMetadataBuilder(*given)
    assert builder.decode_threshold == builder.reorder_batch_threshold == 1 + nodes
    assert builder.vllm_config is made and builder.speculative_config is made.speculative_config
    assert made.speculative_config.num_speculative_tokens == nodes
    assert tree_config(made).num_speculative_tokens == nodes


def test_what_vllm_ascend_says_of_vllm_0_23_still_holds(on_host):
    """Names of vLLM's own that all platforms touch, in this environment's vLLM."""
    from vllm_eagle_pangu.compat.seams import SEAMS

    missing = [
        str(seam)
        for seam in SEAMS
        if "0.23" in seam.lines and seam.platform is None and not seam.exists()
    ]
    assert not missing
