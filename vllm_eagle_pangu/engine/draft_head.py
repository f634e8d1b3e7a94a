# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 head on vLLM's layers and pages.

vLLM's EagleProposer loads the head and owns its attention groups; the passes are ours, because
vLLM's loop drafts one token a pass.
"""

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from vllm.forward_context import set_forward_context
from vllm.v1.spec_decode.eagle import EagleProposer

from vllm_eagle_pangu.core.ops import Ops
from vllm_eagle_pangu.core.uploads import upload
from vllm_eagle_pangu.engine.head_parallel import mask_token
from vllm_eagle_pangu.kernels.indices import filled, index_range
from vllm_eagle_pangu.step.extend import Extension
from vllm_eagle_pangu.step.head import States
from vllm_eagle_pangu.step.rows import TreeRows

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionMetadata, CommonAttentionMetadata


@dataclass
class TreeOnlyMetadata:
    """Attention metadata of a pass in which every row belongs to a tree.

    `slot_mapping: [n]`: for vllm-ascend's layers, which find page slots in their metadata.
    """

    tree: TreeRows
    slot_mapping: torch.Tensor | None = None


class DraftHead:
    """`step.head.Head`, loaded by vLLM's proposer: any head, through its own `forward`."""

    rowwise = False

    def __init__(self, proposer: EagleProposer, ops: Ops) -> None:
        self.proposer = proposer
        self.model = proposer.model
        self.ops = ops
        self.most_compiled = proposer.vllm_config.scheduler_config.max_num_batched_tokens
        self.layer_names = sorted(proposer._draft_attn_layer_names)
        context = proposer.vllm_config.compilation_config.static_forward_context
        self.layers = [context[name] for name in self.layer_names]
        self.parallel = hasattr(self.model, "mask_hidden")
        mapping = getattr(self.model, "draft_id_to_target_id", None)
        self.target_ids = (
            None if mapping is None else mapping + index_range(mapping.shape[0], mapping.device)
        )

    @property
    def group(self) -> int:
        """See `Head`; known once the KV cache is there."""
        return self.proposer.kv_cache_gid

    @cached_property
    def page_size(self) -> int:
        """See `Head`; known once the KV cache is there."""
        layer = self.layers[0]
        return layer.impl.pages(layer, layer.kv_cache).shape[2]

    def masked(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Head`."""
        token, hidden = self._mask
        return filled(token, (rows,), hidden.device), hidden.repeat(rows, 1)

    @cached_property
    def _mask(self) -> tuple[int, torch.Tensor]:
        """The token of masked rows, and `[1, H]`, their hidden."""
        token = mask_token(self.proposer.draft_model_config.hf_config)
        assert token is not None, "checked at start-up"
        return token, self.model.combine_hidden_states(self.model.mask_hidden.view(1, -1))

    def read(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See `Head`."""
        raise AssertionError("only a rowwise head reads rows by themselves")

    def extend(
        self, extension: Extension, taps: torch.Tensor, attention: "CommonAttentionMetadata"
    ) -> States:
        """See `Head`; `attention`: vLLM's CommonAttentionMetadata of the target's batch."""
        rows = extension.rows
        hidden = self.model.combine_hidden_states(taps)
        metadata = self.extend_metadata(extension, attention)
        return self.run(rows.tokens, rows.positions, hidden, metadata, rows.slots)

    def level(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        hidden: torch.Tensor,
        rows: TreeRows,
    ) -> States:
        """See `Head`."""
        return self.run(tokens, positions, hidden, TreeOnlyMetadata(rows), None)

    def children(self, states: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Head`; each `[n, W]`."""
        return self.ops.top_children(self.logits(states), width, self.target_ids)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """`[n, V_d]` logits over the draft vocabulary."""
        return self.model.logits_processor(self.model.lm_head, states)

    def run(
        self,
        tokens: torch.Tensor,  # [n] int64
        positions: torch.Tensor,  # [n] int64
        hidden: torch.Tensor,  # [n, H], overwritten
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,  # [n], None where the K/V of these rows is not for the pages
    ) -> States:
        """One pass: states for the logits and for the next pass, `[n, H]` each."""
        with self.context(tokens.shape[0], metadata, slots):
            return self.model(
                input_ids=tokens.int(),
                positions=positions,
                hidden_states=hidden,
                inputs_embeds=None,
            )

    def context(
        self,
        rows: int,
        metadata: "AttentionMetadata | TreeOnlyMetadata",
        slots: torch.Tensor | None,
    ) -> AbstractContextManager[None]:
        """In which the layers find their metadata and slots."""
        return set_forward_context(
            dict.fromkeys(self.layer_names, metadata),
            self.proposer.vllm_config,
            num_tokens=rows,
            # Trees cut to the room of a step have more rows in the head's pass than in the step.
            skip_compiled=rows > self.most_compiled,
            slot_mapping={} if slots is None else dict.fromkeys(self.layer_names, slots),
        )

    def extend_metadata(
        self, extension: Extension, common: "CommonAttentionMetadata | None"
    ) -> "AttentionMetadata | TreeOnlyMetadata":
        """vLLM's metadata of the extension's rows, with the trees among them."""
        if extension.trees is not None and extension.trees.covers_batch:
            return TreeOnlyMetadata(extension.trees)
        assert common is not None
        rows, lens = extension.rows, extension.seq_lens
        counts = torch.from_numpy(extension.counts)
        common = copy.copy(common)
        common.num_reqs = len(extension.requests)
        common.query_start_loc = rows.query_start.int()
        common.query_start_loc_cpu = pad(counts.cumsum(0), (1, 0)).int()
        common.num_actual_tokens = rows.tokens.shape[0]
        common.max_query_len = int(counts.max())
        # Those of trees only keep vLLM's op inside the block table: their rows are overwritten.
        common.seq_lens = upload(rows.tokens.device, lens=lens)["lens"].int()
        common.max_seq_len = int(lens.max())
        common.block_table_tensor = extension.block_table
        common.slot_mapping = rows.slots
        (group,) = self.proposer.draft_attn_groups
        metadata = group.get_metadata_builder().build(0, common)
        metadata.tree = extension.trees
        return metadata
