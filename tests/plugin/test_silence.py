# SPDX-License-Identifier: Apache-2.0
"""Without the method the plugin changes nothing and says nothing, in a fresh process."""

import os
import re
import subprocess
import sys

# Prints what a user's process would log, then the configuration and what the plugin could touch.
SCRIPT = """
import sys
from vllm import EngineArgs
from vllm.v1.attention.backends.registry import AttentionBackendEnum
options = dict(skip_tokenizer_init=True, load_format="dummy", max_model_len=256)
eagle3 = {"method": "eagle3", "model": sys.argv[2], "num_speculative_tokens": 3}
for spec in (None, eagle3):
    args = EngineArgs(model=sys.argv[1], speculative_config=spec, **options)
    config = args.create_engine_config()
    print(config.compute_hash(), config, config.parallel_config, config.scheduler_config)
    print(sorted(vars(config.speculative_config)) if spec else None)
    print(AttentionBackendEnum.CPU_ATTN.get_path(), EngineArgs.create_engine_config.__qualname__)
print("plugin loaded:", "vllm_eagle_pangu.plugin" in sys.modules)
"""
_CHANGES = re.compile(r"pid=\d+|\d\d-\d\d \d\d:\d\d:\d\d|0x[0-9a-f]+|port=\d+|'[0-9a-f-]{32,36}'")


def run(target, head, **environment: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(target), str(head)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return [_CHANGES.sub("", line) for line in result.stdout.splitlines()]


def test_without_the_method_configuration_and_log_are_the_same(target, head):
    *without, not_loaded = run(target, head, VLLM_PLUGINS="")
    *with_plugin, loaded = run(target, head)
    assert (not_loaded, loaded) == ("plugin loaded: False", "plugin loaded: True")
    assert with_plugin == without
