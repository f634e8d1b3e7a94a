# SPDX-License-Identifier: Apache-2.0
"""What a step knows of the batch that it decodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm_eagle_pangu.core.request import RequestView


@dataclass(frozen=True)
class BatchView:
    """B requests and N token rows as vLLM laid them out, each request's one after the other.

    On the host:

    `requests: [B]`.
    `tokens: [B, L] int32`: each request's tokens by position, the known ones.
    `host_query_start: [B+1]`: first row of each request, then N.

    On the device:

    `token_ids: [N] int32`; `positions: [N] int64`.
    `query_start: [B+1] int32`.
    `slots`: by KV cache group, `[N] int64`.
    `block_tables`: by KV cache group, `[B, P] int32`.
    """

    requests: Sequence[RequestView]
    tokens: np.ndarray
    host_query_start: np.ndarray
    token_ids: torch.Tensor
    positions: torch.Tensor
    query_start: torch.Tensor
    slots: Mapping[int, torch.Tensor]
    block_tables: Mapping[int, torch.Tensor]

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.requests)

    @property
    def rows(self) -> int:
        """N."""
        return int(self.host_query_start[-1])

    @property
    def device(self) -> torch.device:
        """Where the step runs."""
        return self.positions.device
