# SPDX-License-Identifier: Apache-2.0
"""Accepted tokens to the drafter's next input rows."""

from vllm_eagle_pangu.kernels.draft_batch.reference import draft_batch
from vllm_eagle_pangu.kernels.draft_batch.rows import DraftRows

__all__ = ["DraftRows", "draft_batch"]
