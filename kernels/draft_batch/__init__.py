# SPDX-License-Identifier: Apache-2.0
"""Accepted tokens to the drafter's next input rows."""

from vllm_eagle_pangu.kernels.draft_batch import reference
from vllm_eagle_pangu.kernels.draft_batch.reference import DraftRows
from vllm_eagle_pangu.kernels.implementations import Op

__all__ = ["DraftRows", "draft_batch"]

draft_batch = Op(reference.draft_batch)
