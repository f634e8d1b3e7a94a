# SPDX-License-Identifier: Apache-2.0
"""Target draws at tree rows with vLLM's own sampler, under each request's own parameters."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from vllm_eagle_pangu.core.indices import index_range


@dataclass(frozen=True)
class TreeLinks:
    """The scheduled rows of one tree, as the walk on the host needs them; the root is row 0."""

    tokens: list[int]
    parent: list[int]

    def child(self, row: int, token: int) -> int | None:
        """The lowest child of `row` that carries `token`."""
        nodes = range(1, len(self.tokens))
        return next((n for n in nodes if self.parent[n] == row and self.tokens[n] == token), None)


@dataclass(frozen=True)
class Draws:
    """Target draws at the rows of logits, R of them.

    `tokens: [R] int64`: -1 at rows where none was made: no walk comes there.
    `logprobs`: one row per draw, in the order of the draws, or None where nobody asked.
    `order: [R] int64`: the row of `logprobs` that belongs to a row of logits; 0 without a draw.
    """

    tokens: torch.Tensor
    logprobs: LogprobsTensors | None
    order: torch.Tensor

    def logprobs_of(self, rows: torch.Tensor) -> LogprobsTensors | None:
        """The logprobs of emitted tokens; `rows: [B, n] int64`, anything where none was emitted.

        Returns `B * n` rows, as `RejectionSampler.parse_output` filters them.
        """
        if self.logprobs is None:
            return None
        drawn = self.order[rows.flatten()]
        return LogprobsTensors(
            *(None if field is None else field[drawn] for field in self.logprobs)
        )


def draw(
    sampler: Sampler,
    logits: torch.Tensor,  # [R, V], the rows of a request together: root, then its nodes
    metadata: SamplingMetadata,
    counts: list[int],  # rows per request
    links: Callable[[], Mapping[int, TreeLinks]],  # by request; those without have one row
) -> Draws:
    """Draw from the target's distribution at every row that the walk can come to.

    All rows at once where that is cheap, else level by level along the walk: a draw costs a sort
    of the vocabulary under top-p, and the walk needs few of them. Along the walk a request's own
    generator makes one draw per emitted token, as in plain decoding: the same seed, the same text.
    """
    if _draws_every_row(metadata, logits.device):
        request = [index for index, count in enumerate(counts) for _ in range(count)]
        output = sampler(logits=logits, sampling_metadata=_per_row(metadata, request, None))
        order = index_range(len(request), logits.device)
        return Draws(output.sampled_token_ids[:, 0].long(), output.logprobs_tensors, order)
    return _draw_along_walks(sampler, logits, metadata, counts, links())


def _draws_every_row(metadata: SamplingMetadata, device: torch.device) -> bool:
    if needs_paths(metadata):
        return False
    wants_logprobs = metadata.max_num_logprobs is not None or metadata.logprob_token_ids
    # Off the CPU a level costs a wait for the device, which is dearer than the rows it saves.
    return device.type != "cpu" or bool(metadata.all_greedy and not wants_logprobs)


def _draw_along_walks(
    sampler: Sampler,
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    counts: list[int],
    trees: Mapping[int, TreeLinks],
) -> Draws:
    first_row = [0, *accumulate(counts)]
    tokens = torch.full((logits.shape[0],), -1)
    order = torch.zeros(logits.shape[0], dtype=torch.long)
    logprobs: list[LogprobsTensors | None] = []
    draws: list[int] = []
    with_paths = needs_paths(metadata)
    paths: list[list[int]] = [[] for _ in counts]
    # Tree row where each walk stands; requests whose walk has ended leave.
    standing = dict.fromkeys(range(len(counts)), 0)
    while standing:
        request = list(standing)
        rows = torch.tensor([first_row[index] + row for index, row in standing.items()])
        level_paths = [paths[index] for index in request] if with_paths else None
        level = logits[rows.to(logits.device)]
        if level_paths is not None:
            level = _apply_min_tokens(level, metadata, request, level_paths)
        output = sampler(logits=level, sampling_metadata=_per_row(metadata, request, level_paths))
        new = output.sampled_token_ids[:, 0].long().cpu()
        tokens[rows] = new
        order[rows] = torch.arange(len(request)) + sum(draws)
        draws.append(len(request))
        logprobs.append(output.logprobs_tensors)
        following: dict[int, int] = {}
        for index, token in zip(request, new.tolist(), strict=True):
            tree = trees.get(index)
            child = None if tree is None else tree.child(standing[index], token)
            if child is not None:
                following[index] = child
                paths[index].append(token)
        standing = following
    return Draws(tokens.to(logits.device), _concatenate(logprobs, draws), order.to(logits.device))


def _concatenate(levels: list[LogprobsTensors | None], draws: list[int]) -> LogprobsTensors | None:
    """One row per draw. A level in which nobody asked for logprobs gives rows that nobody reads.

    `draws`: how many there were at each level. Levels differ in width where requests ask for
    logprobs of their own tokens (`logprob_token_ids`).
    """
    given = [level for level in levels if level is not None]
    if not given:
        return None
    width = max(level.logprobs.shape[1] for level in given)
    ids = given[0].logprob_token_ids.new_zeros(sum(draws), width)
    logprobs = given[0].logprobs.new_full((sum(draws), width), -torch.inf)
    ranks = given[0].selected_token_ranks.new_zeros(sum(draws))
    start = 0
    for level, count in zip(levels, draws, strict=True):
        rows = slice(start, start + count)
        start += count
        if level is not None:
            columns = level.logprobs.shape[1]
            ids[rows, :columns] = level.logprob_token_ids
            logprobs[rows, :columns] = level.logprobs
            ranks[rows] = level.selected_token_ranks
    return LogprobsTensors(ids, logprobs, ranks)


def needs_paths(metadata: SamplingMetadata) -> bool:
    """Whether a row's distribution depends on the tokens between the root and it."""
    return bool(
        not metadata.no_penalties
        or metadata.bad_words_token_ids
        or any(processor.min_toks for processor in _min_tokens_processors(metadata))
    )


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
