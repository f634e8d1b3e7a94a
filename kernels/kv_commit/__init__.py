# SPDX-License-Identifier: Apache-2.0
"""Accepted rows' K/V to pages."""

from vllm_eagle_pangu.kernels.kv_commit.reference import commit_slots, kv_commit

__all__ = ["commit_slots", "kv_commit"]
