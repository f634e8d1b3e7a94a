# SPDX-License-Identifier: Apache-2.0
"""Traces of a runner: its steps written with the times of their stages, its failures dumped."""

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.policy import StepReport
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.step.accept import Accepted
from vllm_eagle_pangu.step.commit import Committed
from vllm_eagle_pangu.step.place import Placed
from vllm_eagle_pangu.step.stages import Observer, Result
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.dump import CacheState, FailedStep, write_dump
from vllm_eagle_pangu.tracing.lines import StepEntry
from vllm_eagle_pangu.tracing.schema import DUMPS
from vllm_eagle_pangu.tracing.writer import TraceWriter

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams

    from vllm_eagle_pangu.engine.runner import TreeRunnerMixin

HOST = torch.device("cpu")
# Traces name both halves of drafting together.
_NAMES: dict[str, str] = {"extend": "draft_us", "grow": "draft_us"}


class StepTracer(Observer):
    """The traces of one runner, which it is told of as the first of its observers."""

    def __init__(self, runner: "TreeRunnerMixin", config: TraceConfig) -> None:
        self.runner = runner
        self.steps = 0
        # By its class, what a stage of the step gave.
        self._found: dict[type, Any] = {}
        self._ended_at = time.perf_counter()
        self.writer = TraceWriter(
            config,
            configuration=_configuration(runner),
            seed=runner.model_config.seed,
            device=runner.device.type,
        )

    def close(self) -> None:
        """Write the ends of requests that no further step would report, and end the run."""
        for req_id in list(self.runner.requests):
            self._request_ended(req_id)
        self.writer.close()

    def began(self, started: Sequence[str], finished: Sequence[str]) -> None:
        """See `Observer`. The runner still knows the requests that have finished."""
        self._found = {}
        for req_id in finished:
            self._request_ended(req_id)
        for req_id in started:
            self.writer.request_started(req_id)

    def found(self, result: Result) -> None:
        """See `Observer`."""
        self._found[type(result)] = result

    def ended(self, report: StepReport) -> None:
        """See `Observer`."""
        self._ended_at = time.perf_counter()
        if report.tree is not None and report.paths is not None:
            self._write(report, report.tree, report.paths)
        self.steps += 1

    def failed(self, error: Exception) -> None:
        """See `Observer`: leaves a dump."""
        write_dump(self.writer.folder / DUMPS, error, self._failed(), self.writer.manifest)

    def _write(self, report: StepReport, tree: TreeBatch, paths: AcceptedPaths) -> None:
        times: dict[str, float] = {}
        for stage, seconds in report.seconds.items():
            name = _NAMES.get(stage, f"{stage}_us")
            times[name] = times.get(name, 0.0) + 1e6 * seconds
        times["step_us"] = sum(v for k, v in times.items() if k != "between_us")
        entry = StepEntry(
            time_us=self.writer.now_us(),
            step=self.steps,
            batch_size=report.batch,
            requests=[request.id for request in report.requests],
            prefix_len=[request.committed for request in report.requests],
            shapes=report.shapes,
            tree=tree.to(HOST),
            paths=AcceptedPaths(*(each.to(HOST) for each in vars(paths).values())),
            stage_us=times,
            belief=[self.runner.step.policy.line(request) for request in report.requests],
        )
        self.writer.step(entry)

    def _request_ended(self, req_id: str) -> None:
        """The scheduler says so at the next step, which may be long after its last one."""
        state = self.runner.requests.get(req_id)
        if state is not None:
            outputs = len(state.output_token_ids)
            self.writer.request_ended(req_id, state.num_prompt_tokens, outputs, self._ended_at)

    def _failed(self) -> FailedStep:
        """What is known of a step that failed."""
        placed: Placed | None = self._found.get(Placed)
        trees = None if placed is None else placed.trees
        if placed is None or trees is None:
            return FailedStep(step=self.steps)
        requests = [placed.view.requests[tree.request] for tree in trees.scheduled]
        states = [self.runner.requests[request.id] for request in requests]
        params = [state.sampling_params for state in states]
        walked: Accepted | None = self._found.get(Accepted)
        accepted = None if walked is None else walked.trees
        return FailedStep(
            requests=[request.id for request in requests],
            step=self.steps,
            prompt_token_ids=[state.prompt_token_ids for state in states],
            output_token_ids=[list(state.output_token_ids) for state in states],
            scheduled_token_ids=[list(tree.tokens) for tree in trees.scheduled],
            prefix_len=[request.committed for request in requests],
            count=[nodes + 1 for nodes in trees.nodes],
            greedy=[p.temperature == 0 and _draws_as_given(p) for p in params],
            tree=trees.tree,
            draws=None if accepted is None else accepted.draws,
            path=None if accepted is None else accepted.paths,
            caches=[self._cache(placed, group) for group in placed.view.slots],
        )

    def _cache(self, placed: Placed, group: int) -> CacheState:
        trees, table = placed.trees, self.runner.input_batch.block_table[group]
        assert trees is not None
        return CacheState(
            group=group,
            block_size=table.block_size,
            block_ids=[
                table.block_table.np[
                    tree.request, : table.num_blocks_per_row[tree.request]
                ].tolist()
                for tree in trees.scheduled
            ],
            linear_slots=trees.slots_by_position(placed.view.slots[group]),
            commit_slots=self._found.get(Committed, Committed({})).slots.get(group),
        )


def _draws_as_given(params: "SamplingParams") -> bool:
    """Whether nothing is added to the target's logits before they are drawn from."""
    return (
        params.presence_penalty == params.frequency_penalty == 0
        and params.repetition_penalty == 1
        and not params.bad_words
        and not params.logit_bias
        and not params.min_tokens
        and params.allowed_token_ids is None
        and getattr(params, "thinking_token_budget", None) is None
    )


def _configuration(runner: "TreeRunnerMixin") -> dict[str, Any]:
    """What was asked for, for the manifest."""
    config = runner.vllm_config
    return {
        "method": dataclasses.asdict(runner.tree_config),
        "model": config.model_config.model,
        "head": config.speculative_config.model,
        "dtype": str(runner.dtype),
        "max_model_len": runner.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "block_size": config.cache_config.block_size,
        "enforce_eager": config.model_config.enforce_eager,
    }
