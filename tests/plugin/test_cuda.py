# SPDX-License-Identifier: Apache-2.0
"""What vLLM would start on a GPU: its own configuration of one that is only pretended."""

import json
import subprocess
import sys
from importlib import import_module
from inspect import signature

import pytest

from vllm_eagle_pangu.compat import PLATFORMS

# In a process of its own: modules keep the platform that they were imported under.
PRETENDED = """
import json, sys, types
# The CUDA build's extensions; nothing of them is called without a GPU.
sys.modules["vllm._C_stable_libtorch"] = types.ModuleType("_C_stable_libtorch")
import vllm.platforms
# vLLM 0.23 would load the CPU's for AVX-512, which may be no instructions here: this machine's are.
vllm.platforms.current_platform.import_kernels()
sys.modules.setdefault("vllm._C", types.ModuleType("_C"))
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability
from vllm.engine.arg_utils import EngineArgs
# Models choose their kernels when they are imported: the CPU's, which exist here.
import vllm.model_executor.models.llama, vllm.model_executor.models.llama_eagle3
import vllm_eagle_pangu.engine.gpu_worker

capability = None

class PretendedGPU(NonNvmlCudaPlatform):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
    has_device_capability = classmethod(
        lambda cls, needed, device_id=0:
        capability >= (needed if isinstance(needed, tuple) else divmod(needed, 10))
    )
    get_device_name = classmethod(lambda cls, device_id=0: "pretended GPU")
    get_device_uuid = classmethod(lambda cls, device_id=0: "0")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
    num_compute_units = classmethod(lambda cls, device_id=0: 132)

vllm.platforms._current_platform = PretendedGPU()
"""

CONFIGURE = (
    PRETENDED
    + """
from types import SimpleNamespace
from vllm.v1.spec_decode.eagle import EagleProposer

def draft_backend(config):
    # What vLLM builds the draft layers with.
    proposer = SimpleNamespace(vllm_config=config, speculative_config=config.speculative_config)
    draft_config = EagleProposer._create_draft_vllm_config(proposer)
    backend = draft_config.attention_config.backend
    return None if backend is None else backend.name

target, head, cases = json.loads(sys.argv[1])
results = []
for case in cases:
    capability = tuple(case["capability"])
    options = dict(case["options"])
    spec = options.pop("spec", {})
    args = EngineArgs(
        model=target, skip_tokenizer_init=True, **options,
        speculative_config={"method": "eagle_pangu", "model": head, "num_speculative_tokens": 8}
        | spec,
    )
    try:
        config = args.create_engine_config()
    except ValueError as error:
        results.append(str(error))
        continue
    results.append([
        config.parallel_config.worker_cls, config.attention_config.backend.name,
        draft_backend(config),
        config.use_v2_model_runner, config.scheduler_config.async_scheduling,
        args.async_scheduling,
    ])
print("RESULTS" + json.dumps(results))
"""
)

# Prints what runner configurations without and with trees choose, here and where they are sent.
RUNNERS = (
    PRETENDED
    + """
import os, pickle
import vllm.config.vllm
capability = (9, 0)
# Without it vLLM has no V2 runner; there is no driver for it here.
vllm.config.vllm.HAS_TRITON = True

def in_a_worker(configs):
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    return [config.use_v2_model_runner for config in pickle.loads(configs)]

# The worker is a fork from before anything was configured, or a plugin loaded: nothing but the
# environment and the configurations come to it, and nothing is imported again.
sent, answered = os.pipe(), os.pipe()
if os.fork() == 0:
    try:
        os.close(sent[1])
        with os.fdopen(sent[0], "rb") as pipe:
            environment, configs = pickle.load(pipe)
        os.environ.clear()
        os.environ.update(environment)
        with os.fdopen(answered[1], "w") as pipe:
            json.dump(in_a_worker(configs), pipe)
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
os.close(sent[0])
os.close(answered[1])

target, head = json.loads(sys.argv[1])
spec = {"method": "eagle_pangu", "model": head, "num_speculative_tokens": 8}

def configured(spec):
    args = EngineArgs(model=target, skip_tokenizer_init=True, speculative_config=spec)
    return args.create_engine_config()

environment = dict(os.environ)
configs = [configured(None), configured(spec), configured(None)]
here = [config.use_v2_model_runner for config in configs]
changed = dict(os.environ).items() ^ environment.items()
with os.fdopen(sent[1], "wb") as pipe:
    pickle.dump((dict(os.environ), pickle.dumps(configs)), pipe)
with os.fdopen(answered[0]) as pipe:
    there = json.load(pipe)
print("RESULTS" + json.dumps({"here": here, "there": there,
    "changed": [pair for pair in changed if "RUNNER" in pair[0]]}))
"""
)

WORKER = "vllm_eagle_pangu.engine.gpu_worker.TreeGPUWorker"


@pytest.fixture
def configured(target, head):
    """Results of `create_engine_config`, one per (capability, options)."""

    def run(*cases):
        cases = [{"capability": capability, "options": options} for capability, options in cases]
        return printed_by(CONFIGURE, [str(target), str(head), cases])

    return run


def printed_by(script, argument):
    found = subprocess.run(
        [sys.executable, "-c", script, json.dumps(argument)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "RESULTS" in found.stdout, found.stderr[-2000:]
    return json.loads(found.stdout.rpartition("RESULTS")[2])


def test_on_a_gpu_our_worker_the_v1_runner_and_backends_of_ours_are_chosen(configured):
    """For the draft layers vLLM chose anew: FLASHINFER on sm_100."""
    draft_only = {"spec": {"attention_backend": "triton_attn"}}
    hopper, adaptive, blackwell, in_float32, asked_for, for_head, *refusals = configured(
        ((9, 0), {}),
        ((9, 0), {"spec": {"tree_policy": "adaptive"}}),
        ((10, 0), {}),
        ((9, 0), {"dtype": "float32"}),
        ((9, 0), {"attention_backend": "TRITON_ATTN"}),
        ((9, 0), draft_only),
        ((10, 0), {"attention_backend": "FLASHINFER"}),
        ((10, 0), {"spec": {"attention_backend": "FLASHINFER"}}),
    )
    assert hopper == adaptive == [WORKER, "FLASH_ATTN", "FLASH_ATTN", False, False, None]
    assert for_head == [WORKER, "FLASH_ATTN", "TRITON_ATTN", False, False, None]
    for chosen in (blackwell, in_float32, asked_for):
        assert chosen == [WORKER, "TRITON_ATTN", "TRITON_ATTN", False, False, None]
    for message, whose in zip(refusals, ("", "speculative_config."), strict=True):
        assert message.startswith(f"eagle_pangu: {whose}attention_backend='FLASHINFER': ")
        assert "set it to FLASH_ATTN or TRITON_ATTN" in message


def test_trees_choose_the_v1_runner_for_themselves_alone(target, head):
    """The variable that chose it stayed behind, for every later engine of the process."""
    chosen = printed_by(RUNNERS, [str(target), str(head)])
    assert chosen == {"here": [True, False, True], "there": [True, False, True], "changed": []}


def class_at(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("platforms", PLATFORMS.values(), ids=PLATFORMS)
def test_every_part_for_cuda_can_be_imported(platforms):
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    parts = platforms["cuda"]
    assert class_at(parts.worker).__name__ == "TreeGPUWorker"
    for name, path in parts.attention.items():
        ours, theirs = class_at(path), class_at(AttentionBackendEnum[name].value)
        assert issubclass(ours, theirs) and ours.get_name() == name
        builder, impl = ours.get_builder_cls(), ours.get_impl_cls()
        assert issubclass(builder, theirs.get_builder_cls())
        assert issubclass(impl, theirs.get_impl_cls())
        assert builder.get_cudagraph_support(None, None) is AttentionCGSupport.NEVER


def test_the_worker_lends_its_runner_while_the_device_is_initialised(monkeypatch):
    import vllm.v1.worker.gpu_model_runner as runners
    from vllm.v1.worker.gpu_worker import Worker

    from vllm_eagle_pangu.engine.gpu_worker import TreeGPUModelRunner, TreeGPUWorker

    built = []
    vllms = runners.GPUModelRunner
    monkeypatch.setattr(Worker, "init_device", lambda self: built.append(runners.GPUModelRunner))
    TreeGPUWorker.init_device(object.__new__(TreeGPUWorker))
    assert built == [TreeGPUModelRunner] and runners.GPUModelRunner is vllms


def test_what_the_runner_overrides_exists_with_the_arguments_that_it_passes_on():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
    from vllm_eagle_pangu.engine.runner_start import TreeRunnerStart

    hooks = {
        "load_model": None,
        "initialize_kv_cache": None,
        "_cleanup_profiling_kv_cache": [],
        "_dummy_sampler_run": ["hidden_states"],
        "_build_attention_metadata": None,
        "_prepare_inputs": ["scheduler_output", "num_scheduled_tokens"],
        "_sample": ["logits", "spec_decode_metadata"],
        "_input_fits_in_drafter": ["common_attn_metadata"],
        "propose_draft_token_ids": list(
            signature(TreeRunnerMixin.propose_draft_token_ids).parameters
        )[1:],
    }
    for name, expected in hooks.items():
        assert name in vars(TreeRunnerMixin).keys() | vars(TreeRunnerStart).keys()
        arguments = list(signature(getattr(GPUModelRunner, name)).parameters)[1:]
        if expected is not None:
            assert len(arguments) == len(expected), (name, arguments)
