# SPDX-License-Identifier: Apache-2.0
"""The method gets into vLLM's configuration by every spelling, and only when it is chosen."""

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest

from vllm_eagle_pangu import plugin
from vllm_eagle_pangu.config import TreeConfig, tree_config

WORKER = "vllm_eagle_pangu.engine.cpu_worker.TreeCPUWorker"
SCHEDULER = "vllm_eagle_pangu.engine.scheduler.TreeScheduler"


def test_engine_args_take_the_method_and_its_keys(engine_args):
    config = engine_args({"num_speculative_tokens": 48, "tree_depth": 4}).create_engine_config()
    assert tree_config(config) == TreeConfig(num_speculative_tokens=48, tree_depth=4)
    assert config.speculative_config.method == "eagle3"
    assert config.num_speculative_tokens == config.num_lookahead_tokens == 48
    assert config.parallel_config.worker_cls == WORKER
    assert config.scheduler_config.scheduler_cls == SCHEDULER
    assert not config.scheduler_config.async_scheduling


def test_the_command_line_takes_the_method_as_json(target, head):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    spec = {"method": "eagle_pangu", "model": str(head), "tree_width": 2, "tree_policy": "dynamic"}
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    flags = ["--model", str(target), "--skip-tokenizer-init", "--max-model-len", "256"]
    arguments = parser.parse_args([*flags, "--speculative-config", json.dumps(spec)])
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    assert tree_config(config) == TreeConfig(tree_width=2)


def test_the_flat_arguments_count_as_keys(target, head, build):
    args = build(target, head, {"method": ..., "model": ..., "tree_depth": 3})
    args.spec_method, args.spec_model, args.spec_tokens = "eagle_pangu", str(head), 6
    assert tree_config(args.create_engine_config()) == TreeConfig(6, tree_depth=3)


def test_a_key_said_twice_is_refused(engine_args, refused):
    args = engine_args({"num_speculative_tokens": 4})
    args.spec_tokens = 6
    assert "--spec-tokens=6: speculative_config says num_speculative_tokens=4 too" in refused(args)


def test_arguments_can_be_used_twice(engine_args):
    args = engine_args({"tree_depth": 2})
    said = copy.deepcopy(args.speculative_config)
    first, second = args.create_engine_config(), args.create_engine_config()
    assert tree_config(first) == tree_config(second) == TreeConfig(tree_depth=2)
    assert args.speculative_config == said


def test_the_tree_survives_the_way_to_a_worker(engine_args):
    from vllm.config.utils import replace

    config = engine_args({"tree_depth": 2}).create_engine_config()
    for copied in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), replace(config)):
        assert tree_config(copied) == TreeConfig(tree_depth=2)


def test_registering_again_changes_nothing(engine_args):
    from vllm.engine.arg_utils import EngineArgs

    engine_args()
    before = (EngineArgs.create_engine_config, EngineArgs.create_speculative_config)
    plugin.register()
    plugin.register()
    assert (EngineArgs.create_engine_config, EngineArgs.create_speculative_config) == before


def test_another_method_is_left_alone(target, head, build):
    args = build(target, head, {"method": "eagle3", "num_speculative_tokens": 3})
    config = args.create_engine_config()
    assert tree_config(config) is None
    assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert config.scheduler_config.scheduler_cls is None


def test_another_method_with_tree_keys_is_left_to_vllm(target, head, build):
    args = build(target, head, {"method": "eagle3", "num_speculative_tokens": 3, "tree_width": 2})
    with pytest.raises(ValueError, match="tree_width") as error:
        args.create_engine_config()
    assert "eagle_pangu" not in str(error.value)


def test_the_attention_backend_is_replaced_only_on_request():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from vllm_eagle_pangu.compat import install_attention_backend

    ours = "vllm_eagle_pangu.engine.cpu_attention.TreeCPUAttentionBackend"
    cpu = AttentionBackendEnum.CPU_ATTN
    # An engine that an earlier test ran in this process has left its override.
    overridden = cpu.is_overridden()
    cpu.clear_override()
    try:
        plugin.register()
        assert cpu.get_path() != ours
        install_attention_backend()
        install_attention_backend()
        assert cpu.get_path() == ours
    finally:
        if not overridden:
            cpu.clear_override()


def test_llm_shows_the_refusal(target, head):
    from vllm import LLM

    spec = {"method": "eagle_pangu", "model": str(head), "tree_width": 0}
    with pytest.raises(ValueError, match=r"^eagle_pangu: tree_width=0: must be at least 1; set"):
        LLM(str(target), skip_tokenizer_init=True, speculative_config=spec)


def test_vllm_serve_shows_the_refusal_and_fails(target, head):
    spec = json.dumps({"method": "eagle_pangu", "model": str(head), "tree_width": 0})
    serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(target)]
    result = subprocess.run(
        [*serve, "--skip-tokenizer-init", "--speculative-config", spec],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: eagle_pangu: tree_width=0: must be at least 1; set")
