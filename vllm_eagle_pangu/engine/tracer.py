# SPDX-License-Identifier: Apache-2.0
"""Traces of a runner: its stages timed, its steps written, its failures dumped.

Everything here wraps methods of one runner when traces are asked for; without them nothing is
wrapped. The stages of a step do not overlap: a method that calls another one gives its time away.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_eagle_pangu.core.paths import AcceptedPaths
from vllm_eagle_pangu.core.tree import TreeBatch
from vllm_eagle_pangu.engine.tree_step import NO_DRAFT, TreeStep
from vllm_eagle_pangu.tracing.config import TraceConfig
from vllm_eagle_pangu.tracing.dump import CacheState, FailedStep
from vllm_eagle_pangu.tracing.writer import TraceWriter

# Methods of the runner, and the stage whose time each is. What no stage claims is `other_us`; what
# lies between two steps (scheduler, output, and waiting for requests) is `between_us`.
STAGES = {
    "_prepare_inputs": "prepare_us",
    "_place_trees": "place_us",
    "_write_tree_rows": "place_us",
    "_build_attention_metadata": "prepare_us",
    "_attach_trees": "place_us",
    "_model_forward": "verify_us",
    "_sample": "accept_us",
    "_commit": "commit_us",
    "propose_draft_token_ids": "draft_us",
}
DRAW, LOGITS = "draw_us", "verify_us"


class StageClock:
    """Microseconds by stage since `restart`; stages nest, inner time counts for the inner one."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._stack: list[tuple[str, float]] = []

    def restart(self) -> None:
        """Forget the last step, also where it failed inside of a stage."""
        self.times = {}
        self._stack.clear()

    def enter(self, stage: str) -> None:
        now = time.perf_counter()
        self._charge(now)
        self._stack.append((stage, now))

    def leave(self) -> None:
        now = time.perf_counter()
        self._charge(now)
        self._stack.pop()
        if self._stack:
            self._stack[-1] = (self._stack[-1][0], now)

    def _charge(self, now: float) -> None:
        if self._stack:
            stage, since = self._stack[-1]
            self.times[stage] = self.times.get(stage, 0.0) + (now - since) * 1e6


class StepTracer:
    """The traces of one runner; made, it wraps the methods that they are about."""

    def __init__(self, runner: Any, config: TraceConfig) -> None:
        self.runner = runner
        self.clock = StageClock()
        self.steps = 0
        self.step: TreeStep | None = None
        self._scheduled: dict[str, list[int]] = {}
        self._ended_at = time.perf_counter()
        self.writer = TraceWriter(
            config,
            configuration=_configuration(runner),
            seed=runner.model_config.seed,
            device=runner.device.type,
        )
        for method, stage in STAGES.items():
            self._time(runner, method, stage)
        self._time(runner.sampler, "forward", DRAW)
        for method, around in {
            "_update_states": self._around_update_states,
            "_sample": self._around_sample,
            "execute_model": self._around_execute_model,
            "sample_tokens": self._around_sample_tokens,
            "load_model": self._around_load_model,
        }.items():
            setattr(runner, method, around(getattr(runner, method)))

    def close(self) -> None:
        """Write the ends of requests that no further step would report, and end the run."""
        for req_id in list(self.runner.requests):
            self._request_ended(req_id)
        self.writer.close()

    def _time(self, owner: Any, method: str, stage: str) -> None:
        original, clock = getattr(owner, method), self.clock

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            clock.enter(stage)
            try:
                return original(*args, **kwargs)
            finally:
                clock.leave()

        setattr(owner, method, timed)

    def _around_load_model(self, original: Callable) -> Callable:
        @wraps(original)
        def load_model(*args: Any, **kwargs: Any) -> Any:
            loaded = original(*args, **kwargs)
            self._time(self.runner.model, "compute_logits", LOGITS)
            return loaded

        return load_model

    def _around_update_states(self, original: Callable) -> Callable:
        @wraps(original)
        def update_states(scheduler_output: Any) -> Any:
            for req_id in scheduler_output.finished_req_ids:
                self._request_ended(req_id)
            for new in scheduler_output.scheduled_new_reqs:
                self.writer.request_started(new.req_id)
            self._scheduled = scheduler_output.scheduled_spec_decode_tokens
            return original(scheduler_output)

        return update_states

    def _around_sample(self, original: Callable) -> Callable:
        """Drafting lets go of the step: it is kept here till the drafting's time is known."""

        @wraps(original)
        def sample(*args: Any, **kwargs: Any) -> Any:
            self.step = self.runner.tree_step
            return original(*args, **kwargs)

        return sample

    def _around_execute_model(self, original: Callable) -> Callable:
        @wraps(original)
        def execute_model(*args: Any, **kwargs: Any) -> Any:
            self.step = None
            self.clock.restart()
            self.clock.times["between_us"] = (time.perf_counter() - self._ended_at) * 1e6
            return self._watched(original, *args, **kwargs)

        return execute_model

    def _around_sample_tokens(self, original: Callable) -> Callable:
        @wraps(original)
        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            output = self._watched(original, *args, **kwargs)
            self._ended_at = time.perf_counter()
            if self.step is not None:
                self._write(self.step)
            self.steps += 1
            return output

        return sample_tokens

    def _watched(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """Time under no other stage's name, and a dump if it fails."""
        self.clock.enter("other_us")
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            self.writer.dump(error, self._failed(self.step or self.runner.tree_step))
            raise
        self.clock.leave()
        return result

    def _write(self, step: TreeStep) -> None:
        assert step.paths is not None
        batch = self.runner.input_batch
        times = self.clock.times
        times["step_us"] = sum(v for k, v in times.items() if k != "between_us")
        self.writer.step(
            self.steps,
            [batch.req_ids[request] for request in step.host_requests],
            _on_host(step.tree),
            _on_host(step.paths),
            step.host_prefix_lens,
            step.shapes,
            batch.num_reqs,
            times,
        )

    def _request_ended(self, req_id: str) -> None:
        """The scheduler says so at the next step, which may be long after its last one."""
        state = self.runner.requests.get(req_id)
        if state is not None:
            outputs = len(state.output_token_ids)
            self.writer.request_ended(req_id, state.num_prompt_tokens, outputs, self._ended_at)

    def _failed(self, step: TreeStep | None) -> FailedStep:
        """What is known of a step that failed."""
        if step is None:
            return FailedStep(step=self.steps)
        runner = self.runner
        ids = [runner.input_batch.req_ids[request] for request in step.host_requests]
        states = [runner.requests[req_id] for req_id in ids]
        params = [state.sampling_params for state in states]
        return FailedStep(
            requests=ids,
            step=self.steps,
            prompt_token_ids=[state.prompt_token_ids for state in states],
            output_token_ids=[list(state.output_token_ids) for state in states],
            scheduled_token_ids=[
                [token for token in self._scheduled.get(req_id, []) if token != NO_DRAFT]
                for req_id in ids
            ],
            prefix_len=step.host_prefix_lens,
            counts=[nodes + 1 for nodes in step.host_nodes],
            greedy=[p.temperature == 0 and _draws_as_given(p) for p in params],
            tree=_on_host(step.tree),
            draws=None if step.draws is None else step.draws.cpu(),
            paths=None if step.paths is None else _on_host(step.paths),
            caches=[self._cache(step, group) for group in {g for g, _ in runner.tree_layers}],
        )

    def _cache(self, step: TreeStep, group: int) -> CacheState:
        table = self.runner.input_batch.block_table[group]
        committed = step.commit_slots.get(group)
        return CacheState(
            group=group,
            block_size=table.block_size,
            block_ids=[
                table.block_table.np[request, : table.num_blocks_per_row[request]].tolist()
                for request in step.host_requests
            ],
            linear_slots=step.slots_by_position(group).cpu(),
            commit_slots=None if committed is None else committed.cpu(),
        )


def _on_host(value: Any) -> Any:
    """A tree or paths with their tensors on the CPU; themselves where they are there already."""
    assert isinstance(value, (TreeBatch, AcceptedPaths))
    tensors = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if all(getattr(tensor, "is_cpu", True) for tensor in tensors.values()):
        return value
    moved = {name: t.cpu() if hasattr(t, "cpu") else t for name, t in tensors.items()}
    return dataclasses.replace(value, **moved)


def _draws_as_given(params: Any) -> bool:
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


def _configuration(runner: Any) -> dict[str, Any]:
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
