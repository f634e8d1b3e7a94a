# SPDX-License-Identifier: Apache-2.0
"""The sampling parameters of a batch's requests, handed to vLLM's sampler row by row of logits."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata

from vllm_eagle_pangu.core.uploads import upload

if TYPE_CHECKING:
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder
    from vllm.v1.worker.gpu_input_batch import InputBatch

Value = TypeVar("Value")

# Of vLLM's metadata: what requests that are not greedy are drawn with, and what penalties need.
_DRAWN = ("temperature", "top_p", "top_k")
_PENALTIES = (
    *("frequency_penalties", "presence_penalties", "repetition_penalties"),
    "prompt_token_ids",
)
# Of vLLM's input batch: the ids of the requests that have one.
_PENALISED = ("frequency_penalties_reqs", "presence_penalties_reqs", "repetition_penalties_reqs")


@dataclass(frozen=True)
class RequestSampling:
    """vLLM's metadata by request, and what the host knows of it."""

    metadata: SamplingMetadata
    # Requests with a penalty: the metadata keeps those values on the device.
    penalised: frozenset[int]
    min_tokens: Sequence[MinTokensLogitsProcessor]

    @classmethod
    def of_step(cls, batch: "InputBatch") -> "RequestSampling":
        """Of vLLM's input batch; counts the thinking tokens of the last step, so once a step."""
        metadata = batch.sampling_metadata
        requests = {req_id for name in _PENALISED for req_id in getattr(batch, name)}
        holder = metadata.thinking_budget_state_holder
        if holder is not None and holder.has_tracked_requests():
            # No drafts: requests with a budget go without.
            holder.update_state(metadata.output_token_ids, None)
        return cls(
            metadata,
            frozenset(batch.req_id_to_index[req_id] for req_id in requests),
            [
                processor
                for processor in metadata.logitsprocs.non_argmax_invariant
                if isinstance(processor, MinTokensLogitsProcessor)
            ],
        )

    @property
    def wants_logprobs(self) -> bool:
        return self.metadata.max_num_logprobs is not None or bool(self.metadata.logprob_token_ids)

    def follows_path(self, request: int) -> bool:
        """Whether the request's distribution depends on the tokens between the root and a row."""
        return (
            request in self.penalised
            or request in self.metadata.bad_words_token_ids
            or any(request in processor.min_toks for processor in self.min_tokens)
        )

    def by_request(self) -> SamplingMetadata:
        """For logits of one row per request of the batch."""
        budgets = self._budgets(range(len(self.metadata.frequency_penalties)))
        if budgets is None:
            return self.metadata
        return dataclasses.replace(self.metadata, thinking_budget_state_holder=budgets)

    def by_row(
        self,
        request: list[int],  # [rows] the request of each row, ascending
        paths: list[list[int]] | None,  # tokens between the root and each row; None: none
        device: torch.device,
    ) -> SamplingMetadata:
        """For logits of these rows.

        Without `paths`, rows of requests that follow theirs are rightly drawn at the root only.
        """
        given = self.metadata
        penalised = not self.penalised.isdisjoint(request)
        bad_words = _by_row(given.bad_words_token_ids, request) or {}
        used = ["allowed_token_ids_mask"]
        used += () if given.all_greedy else _DRAWN
        used += _PENALTIES if penalised else ()
        held = {name: tensor for name in used if (tensor := getattr(given, name)) is not None}
        tensors = dict.fromkeys(_DRAWN)
        if held:
            index = upload(device, request=request)["request"]
            tensors |= {name: tensor.index_select(0, index) for name, tensor in held.items()}
        outputs: list[list[int]] = []
        if penalised or bad_words:
            outputs = [given.output_token_ids[req] for req in request]
            if paths is not None:
                outputs = [[*out, *path] for out, path in zip(outputs, paths, strict=True)]
        return dataclasses.replace(
            given,
            **tensors,
            generators=_by_row(given.generators, request),
            no_penalties=not penalised,
            output_token_ids=outputs,
            bad_words_token_ids=bad_words,
            logprob_token_ids=_by_row(given.logprob_token_ids, request),
            # min_p and logit_bias are refused by vLLM for speculative requests.
            logitsprocs=LogitsProcessors(
                _MinTokensOfRows(processor, request, paths)
                for processor in self.min_tokens
                if not processor.min_toks.keys().isdisjoint(request)
            ),
            spec_token_ids=None,
            thinking_budget_state_holder=self._budgets(request),
        )

    def _budgets(self, request: Sequence[int]) -> "_BudgetsOfRows | None":
        holder = self.metadata.thinking_budget_state_holder
        if holder is None or not holder.has_tracked_requests():
            return None
        return _BudgetsOfRows(holder, request)


def _by_row(mapping: dict[int, Value] | None, request: list[int]) -> dict[int, Value] | None:
    if not mapping:
        return mapping
    return {row: mapping[req] for row, req in enumerate(request) if req in mapping}


class _MinTokensOfRows:
    """vLLM's `min_tokens`, for rows that each have a number of drafted tokens before them."""

    def __init__(
        self,
        processor: MinTokensLogitsProcessor,
        request: list[int],
        paths: list[list[int]] | None,
    ) -> None:
        self.processor = copy.copy(processor)
        self.processor.min_toks = {}
        for row, req in enumerate(request):
            if req in processor.min_toks:
                least, output, *rest = processor.min_toks[req]
                drafted = 0 if paths is None else len(paths[row])
                # vLLM asks for the length of the output only.
                self.processor.min_toks[row] = (least, range(len(output) + drafted), *rest)

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return self.processor.apply_with_spec_decode(logits, [1] * logits.shape[0])


class _BudgetsOfRows:
    """vLLM's holder of thinking budgets in one call of its sampler, its requests as rows.

    The holder takes logits as laid out for a chain of drafts: in a call with other rows it would
    force the end of one request's thinking in another's row.
    """

    def __init__(self, holder: "ThinkingBudgetStateHolder", request: Sequence[int]) -> None:
        self.holder = copy.copy(holder)
        states = holder._state
        self.holder._state = {row: states[req] for row, req in enumerate(request) if req in states}

    def has_tracked_requests(self) -> bool:
        return self.holder.has_tracked_requests()

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """`RequestSampling.of_step` did, once for all calls of the step."""

    def apply_to_logits(
        self, logits: torch.Tensor, predict_bonus_token: bool, spec_token_ids: object
    ) -> torch.Tensor:
        one_row_each = [[0]] * logits.shape[0]
        return self.holder.apply_to_logits(logits, False, one_row_each)
