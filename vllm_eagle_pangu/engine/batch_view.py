# SPDX-License-Identifier: Apache-2.0
"""vLLM's batch, as a step sees it."""

from typing import TYPE_CHECKING

from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.step.view import BatchView

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def view_of(runner: "GPUModelRunner", has_trees: bool) -> BatchView:
    """Of a V1 runner after its `_prepare_inputs`. Of trees, positions and slots are copied, as they
    overwrite vLLM's. Slots are int32 in vllm-ascend's tables."""
    batch = runner.input_batch
    count = batch.num_reqs
    query_start = runner.query_start_loc.np[: count + 1].copy()
    rows = int(query_start[-1])
    tables = batch.block_table.block_tables
    positions = runner.positions[:rows]
    slots = {group: table.slot_mapping.gpu[:rows] for group, table in enumerate(tables)}
    if has_trees:
        positions = positions.clone()
        slots = {group: of_rows.clone() for group, of_rows in slots.items()}
    return BatchView(
        requests=_requests(runner, count),
        tokens=batch.token_ids_cpu,
        host_query_start=query_start,
        token_ids=runner.input_ids.gpu[:rows],
        positions=positions,
        query_start=runner.query_start_loc.gpu[: count + 1],
        slots={group: of_rows.long() for group, of_rows in slots.items()},
        block_tables={group: table.block_table.gpu[:count] for group, table in enumerate(tables)},
    )


def _requests(runner: "GPUModelRunner", count: int) -> list[RequestView]:
    batch = runner.input_batch
    ids = batch.req_ids[:count]
    params = [runner.requests[req_id].sampling_params for req_id in ids]
    lengths = batch.num_tokens_no_spec[:count]
    outputs = (lengths - batch.num_prompt_tokens[:count]).tolist()
    # In the order of the view's fields.
    columns = (
        ids,
        batch.num_computed_tokens_cpu[:count].tolist(),
        lengths.tolist(),
        [each.max_tokens - emitted for each, emitted in zip(params, outputs, strict=True)],
        runner.discard_request_mask.np[:count].tolist(),
        map(_may_draft, params),
        [each.temperature for each in params],
    )
    return [RequestView(*request) for request in zip(*columns, strict=True)]


def _may_draft(params: "SamplingParams") -> bool:
    """vLLM validates drafts against a grammar, and counts thinking tokens, along a chain."""
    return (
        params.structured_outputs is None and getattr(params, "thinking_token_budget", None) is None
    )
