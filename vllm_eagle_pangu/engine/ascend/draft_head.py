# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head on vllm-ascend's layers and pages."""

import copy
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from vllm_eagle_pangu.engine.draft_head import DraftHead, TreeOnlyMetadata

if TYPE_CHECKING:
    from vllm_ascend.attention.attention_v1 import AscendMetadata
    from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

    from vllm_eagle_pangu.step.extend import Extension


class AscendDraftHead(DraftHead):
    """`step.head.Head`, loaded by vllm-ascend's proposer, inside vllm-ascend's forward context."""

    def context(
        self,
        rows: int,
        metadata: "AscendMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,
    ) -> AbstractContextManager[None]:
        """See `DraftHead`."""
        metadata.slot_mapping = None if slots is None else slots.int()
        return set_ascend_forward_context(
            dict.fromkeys(self.layer_names, metadata),
            self.proposer.vllm_config,
            num_tokens=rows,
            num_actual_tokens=rows,
            is_draft_model=True,
        )

    def extend_metadata(
        self, extension: "Extension", common: "AscendCommonAttentionMetadata | None"
    ) -> "AscendMetadata | TreeOnlyMetadata":
        """See `DraftHead`; vllm-ascend reads lengths on the host, and the state of the batch.

        The target's state may be that of a batch of first chunks, or of single rows.
        """
        if common is not None:
            common = copy.copy(common)
            common._seq_lens_cpu = torch.as_tensor(extension.seq_lens).int()
            common.attn_state = AscendAttentionState.ChunkedPrefill
        return super().extend_metadata(extension, common)
