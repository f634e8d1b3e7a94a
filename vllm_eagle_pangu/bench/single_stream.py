# SPDX-License-Identifier: Apache-2.0
"""One request at a time through an engine in this process, timed step by step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class SingleStream:
    """vLLM's `LLM` at batch 1, without HTTP.

    `options`: arguments of `LLM`, the same for every method.
    """

    def __init__(
        self, model: str, speculative: dict[str, Any] | None, options: dict[str, Any]
    ) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model,
            speculative_config=speculative,
            # A repeated prompt is then as much work as the first time.
            enable_prefix_caching=False,
            disable_log_stats=False,
            **options,
        )
        self.warm = False
        self._warmed = 0

    def warm_up(self, ids: list[int], tokens: int) -> None:
        """An answer that nobody times."""
        self._warmed += 1
        self._answer(f"warm-{self._warmed}", ids, {"max_tokens": tokens, "ignore_eos": True})
        self.warm = True

    def measure(
        self, request: str, ids: list[int], params: dict[str, Any], forward_times: bool
    ) -> dict[str, Any]:
        """Times and counts of one request.

        `forward_times`: also the target's forward by itself, median per decoding step; it makes a
        GPU wait in every step, so such a request's other times are not to be used there.
        """
        before = self._counters()
        if forward_times:
            with self._timed_forwards() as forwards:
                output, times = self._answer(request, ids, params, forwards)
        else:
            output, times = self._answer(request, ids, params)
        counts = {name: value - before[name] for name, value in self._counters().items()}
        drafts = counts["drafts"]
        return {
            "request": request,
            "prompt_tokens": len(ids),
            "output_tokens": len(output),
            "output_ids": output,
            **counts,
            "tau": round(1 + counts["accepted"] / drafts, 6) if drafts else 1.0,
            **times,
        }

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _answer(
        self,
        request: str,
        ids: list[int],
        params: dict[str, Any],
        forwards: list[float] | None = None,
    ) -> tuple[list[int], dict[str, Any]]:
        from vllm import SamplingParams

        engine = self.llm.llm_engine
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        steps, per_step, first, tokens = [], [], None, []
        begin = before = time.perf_counter()
        engine.add_request(request, {"prompt_token_ids": ids}, sampling)
        while engine.has_unfinished_requests():
            if forwards is not None:
                forwards.clear()
            outputs = engine.step()
            now = time.perf_counter()
            if first is not None:
                steps.append(1e3 * (now - before))
                if forwards:
                    per_step.append(sum(forwards))
            before = now
            if outputs:
                tokens = list(outputs[0].outputs[0].token_ids)
                first = first or (now if tokens else None)
        assert first is not None, "a request ends with at least one token"
        later = max(len(tokens) - 1, 1)
        times: dict[str, Any] = {
            "seconds": round(before - begin, 6),
            "ttft_ms": round(1e3 * (first - begin), 4),
            "tpot_ms": round(1e3 * (before - first) / later, 4),
            "steps_ms": [round(step, 4) for step in steps],
        }
        if per_step:
            times["forward_ms"] = round(statistics.median(per_step), 4)
        return tokens, times

    def _counters(self) -> dict[str, int]:
        found = dict.fromkeys((*_COUNTERS.values(), "full_drafts"), 0)
        for metric in self.llm.get_metrics():
            if metric.name in _COUNTERS:
                found[_COUNTERS[metric.name]] = int(metric.value)
            elif metric.name == _PER_POSITION:
                # Steps in which the last position, too, was accepted.
                found["full_drafts"] = int(metric.values[-1])
        return found

    @contextmanager
    def _timed_forwards(self) -> Iterator[list[float]]:
        """Milliseconds of each call of the target's forward and of its logits, as they come."""
        import torch

        core = self.llm.llm_engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        on_gpu = torch.device(runner.device).type == "cuda"
        times: list[float] = []

        def timed(original: Any) -> Any:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                if on_gpu:
                    torch.cuda.synchronize()
                begin = time.perf_counter()
                result = original(*args, **kwargs)
                if on_gpu:
                    torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - begin))
                return result

            return wrapped

        parts = ((runner, "_model_forward"), (runner.model, "compute_logits"))
        for owner, name in parts:
            setattr(owner, name, timed(getattr(owner, name)))
        try:
            yield times
        finally:
            for owner, name in parts:
                delattr(owner, name)
