# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of ours; an operator's word, which wins over `speculative_config`.

vLLM's own that we set for its servers are in `serving.needs`.
"""

import os
from pathlib import Path

from vllm_eagle_pangu.checked import refusal
from vllm_eagle_pangu.kernels.cache_folder import CACHE_DIR, cache_dir

# The folder that traces go to, as the key `trace_dir`.
TRACE_DIR = "EAGLE_PANGU_TRACE_DIR"
# The folder in which adaptive trees keep what they learnt; empty: nowhere.
LEARNT_DIR = "EAGLE_PANGU_LEARNT_DIR"
# 1: tree attention from its definition in torch.
FORCE_EAGER_ATTENTION = "PANGU_FORCE_EAGER_ATTN"
# 1: no fused operator of Ascend's attends tree rows, which is `FORCE_EAGER_ATTENTION` there.
DISABLE_NPU_FUSED = "PANGU_DISABLE_NPU_FUSED"
# 1: trees themselves are attended in plain torch there, prefixes still by the fused operator.
DISABLE_NPU_FUSED_TREE = "PANGU_DISABLE_NPU_FUSED_TREE"
# How an NPU attends tree rows, by the name of one of these implementations of tree attention.
NPU_TREE_ATTENTION = "PANGU_NPU_TREE_ATTENTION"
NPU_IMPLEMENTATIONS = ("npu", "npu_torch_tree", "npu_splitfuse", "npu_padded", "reference")

# `CACHE_DIR`: what is kept from one start to the next, compiled C++ operators among it.
ALL = (
    *(CACHE_DIR, TRACE_DIR, LEARNT_DIR, FORCE_EAGER_ATTENTION),
    *(DISABLE_NPU_FUSED, DISABLE_NPU_FUSED_TREE, NPU_TREE_ATTENTION),
)


def learnt_dir() -> Path | None:
    """None: what adaptive trees learnt is gone with the engine."""
    chosen = os.environ.get(LEARNT_DIR)
    if chosen is None:
        return cache_dir() / "learnt"
    return Path(chosen) if chosen else None


def forced_eager_attention() -> bool:
    """Raises ValueError for a value that is neither 0 nor 1, as do all switches here."""
    return _switch(FORCE_EAGER_ATTENTION)


def npu_attention() -> str:
    """Which of tree attention's implementations an NPU runs: what is switched off stays off.

    Raises ValueError for a name that is none of them.
    """
    eager, fused_off = forced_eager_attention(), _switch(DISABLE_NPU_FUSED)
    tree_off = _switch(DISABLE_NPU_FUSED_TREE)
    named = os.environ.get(NPU_TREE_ATTENTION) or NPU_IMPLEMENTATIONS[0]
    if named not in NPU_IMPLEMENTATIONS:
        problem = f"must be one of {', '.join(NPU_IMPLEMENTATIONS)}"
        mend = f"set {NPU_TREE_ATTENTION} to one of them, or leave it unset"
        raise refusal(NPU_TREE_ATTENTION, named, problem, mend)
    if eager or fused_off or named == "reference":
        return "reference"
    return "npu_torch_tree" if tree_off else named


def _switch(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise refusal(name, value, "must be 0 or 1", f"set {name} to 0 or 1, or leave it unset")
    return value == "1"
