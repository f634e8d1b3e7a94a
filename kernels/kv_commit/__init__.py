# SPDX-License-Identifier: Apache-2.0
"""Accepted rows' K/V to pages."""

from vllm_eagle_pangu.kernels.implementations import Op
from vllm_eagle_pangu.kernels.kv_commit import reference
from vllm_eagle_pangu.kernels.kv_commit.layers import CommitLayers
from vllm_eagle_pangu.kernels.kv_commit.reference import assert_written_once

__all__ = ["CommitLayers", "assert_written_once", "commit_pages", "commit_slots"]

commit_slots = Op(reference.commit_slots)

# Ascend, by its own cache writes: A2 and A3, and A5.
commit_pages = Op(reference.commit_pages, npu="npu_impl", npu_a5="npu_a5_impl")
