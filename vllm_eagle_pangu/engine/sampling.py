# SPDX-License-Identifier: Apache-2.0
"""One target draw per tree row with vLLM's own sampler, under each request's own parameters."""

import dataclasses

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler


def draw_per_row(
    sampler: Sampler,
    # [R, V], the rows of a request together: root, then its nodes
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    # rows per request
    counts: list[int],
    # per row, the tokens on its path below the root
    paths: list[list[int]] | None,
) -> SamplerOutput:
    """Draw a token from the target's distribution at every row.

    `paths` is needed when `needs_paths(metadata)`. Returns `sampled_token_ids: [R, 1]` and, where
    asked for, logprobs of R rows.
    """
    request = [index for index, count in enumerate(counts) for _ in range(count)]
    if paths is not None:
        logits = _apply_min_tokens(logits, metadata, request, paths)
    return sampler(logits=logits, sampling_metadata=_per_row(metadata, request, paths))


def needs_paths(metadata: SamplingMetadata) -> bool:
    """Whether a row's distribution depends on the tokens between the root and it."""
    return bool(
        not metadata.no_penalties
        or metadata.bad_words_token_ids
        or any(processor.min_toks for processor in _min_tokens_processors(metadata))
    )


def gather_logprobs(logprobs: LogprobsTensors, rows: torch.Tensor) -> LogprobsTensors:
    """The logprobs of the rows whose draws were emitted.

    `rows: [B, n] int64` row of each emitted token, anything in range where nothing was emitted.
    Returns `B * n` rows, as `RejectionSampler.parse_output` filters them.
    """
    flat = rows.flatten()
    return LogprobsTensors(*(None if field is None else field[flat] for field in logprobs))


def _per_row(
    metadata: SamplingMetadata, request: list[int], paths: list[list[int]] | None
) -> SamplingMetadata:
    if metadata.all_greedy and paths is None and metadata.allowed_token_ids_mask is None:
        return dataclasses.replace(metadata, logitsprocs=LogitsProcessors([]))
    index = torch.tensor(request)

    def expand(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[index.to(tensor.device)]

    def expand_dict(mapping: dict | None) -> dict | None:
        if not mapping:
            return mapping
        return {row: mapping[req] for row, req in enumerate(request) if req in mapping}

    outputs = metadata.output_token_ids
    if paths is not None and outputs:
        outputs = [[*outputs[req], *path] for req, path in zip(request, paths, strict=True)]
    penalised = not metadata.no_penalties
    return dataclasses.replace(
        metadata,
        temperature=expand(metadata.temperature),
        top_p=expand(metadata.top_p),
        top_k=expand(metadata.top_k),
        generators=expand_dict(metadata.generators),
        prompt_token_ids=expand(metadata.prompt_token_ids) if penalised else None,
        frequency_penalties=_penalty(metadata.frequency_penalties, index, penalised),
        presence_penalties=_penalty(metadata.presence_penalties, index, penalised),
        repetition_penalties=_penalty(metadata.repetition_penalties, index, penalised),
        output_token_ids=outputs,
        allowed_token_ids_mask=expand(metadata.allowed_token_ids_mask),
        bad_words_token_ids=expand_dict(metadata.bad_words_token_ids),
        logprob_token_ids=expand_dict(metadata.logprob_token_ids),
        # Row-bound processors: min_tokens is applied above, min_p and logit_bias are refused by
        # vLLM for speculative requests.
        logitsprocs=LogitsProcessors([]),
        spec_token_ids=None,
        thinking_budget_state_holder=None,
    )


def _penalty(values: torch.Tensor, index: torch.Tensor, penalised: bool) -> torch.Tensor:
    return values[index.to(values.device)] if penalised else values


def _min_tokens_processors(metadata: SamplingMetadata) -> list[MinTokensLogitsProcessor]:
    return [
        processor
        for processor in metadata.logitsprocs.non_argmax_invariant
        if isinstance(processor, MinTokensLogitsProcessor)
    ]


def _apply_min_tokens(
    logits: torch.Tensor, metadata: SamplingMetadata, request: list[int], paths: list[list[int]]
) -> torch.Tensor:
    """Forbid stop tokens in rows that are still short of the request's `min_tokens`."""
    for processor in _min_tokens_processors(metadata):
        for row, req in enumerate(request):
            entry = processor.min_toks.get(req)
            if entry is None:
                continue
            min_tokens, output, stop_ids = entry[:3]
            if len(output) + len(paths[row]) < min_tokens:
                logits[row, list(stop_ids)] = float("-inf")
    return logits
