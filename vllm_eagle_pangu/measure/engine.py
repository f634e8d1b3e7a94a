# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine in this process: generates, is timed step by step, and counts.

Neither torch nor vLLM is imported by who only says which engine is wanted.
"""

import gc
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from vllm_eagle_pangu.doctor.device import CUDA, device_type
from vllm_eagle_pangu.measure.statistics import tau

# Of a GPU's memory, at the start of one of several engines.
LEAST_FREE = 0.1
COUNTS = ("drafts", "drafted", "accepted", "full_drafts")


class _Counter:
    """A vLLM stat logger, of one engine: its Prometheus counters are one registry per process."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)

    def record(self, scheduler_stats: Any, *further: Any, **named: Any) -> None:
        """Called by vLLM after every step."""
        found = scheduler_stats and scheduler_stats.spec_decoding_stats
        if found:
            self.counts["drafts"] += found.num_drafts
            self.counts["drafted"] += found.num_draft_tokens
            self.counts["accepted"] += found.num_accepted_tokens
            # Steps in which the last position, too, was accepted.
            self.counts["full_drafts"] += found.num_accepted_tokens_per_pos[-1]

    def log(self) -> None:
        """Nothing: vLLM asks for it now and then."""

    log_engine_initialized = log


@dataclass(frozen=True)
class Served:
    """A step of clients that are served: its `seconds`, the `tokens` that they got, and after how
    many seconds each one got an answer's first token, that did in this step."""

    seconds: float
    tokens: int
    first: Sequence[float]


class Engine(AbstractContextManager["Engine"]):
    """One engine of a method; without HTTP, its runner within reach. A context manager.

    `arguments`: of `vllm.LLM`. Needs `VLLM_ENABLE_V1_MULTIPROCESSING=0`.
    """

    def __init__(self, model: str, speculative: Mapping[str, Any] | None, **arguments: Any) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        counter = _Counter()
        self.counts = counter.counts
        chosen = {
            "model": model,
            "speculative_config": speculative and dict(speculative),
            # A repeated prompt is then as much work as the first time.
            "enable_prefix_caching": False,
            "disable_log_stats": False,
        }
        if device_type() == CUDA and arguments.get("kv_cache_memory_bytes") is not None:
            # As the pages' bytes are said, this is but what vLLM wants to find free.
            arguments = {"gpu_memory_utilization": LEAST_FREE, **arguments}
        self.vllm = LLMEngine.from_engine_args(
            EngineArgs(**{**arguments, **chosen}),
            # Of the defaults that depend on it, `LLM`'s.
            UsageContext.LLM_CLASS,
            stat_loggers=[lambda config, index: counter],
        )
        # vLLM's model runner, in whose `stages` a step of this plugin tells where it is.
        self.runner: Any
        (self.runner,) = self.vllm.collective_rpc(lambda worker: worker.model_runner)
        self._numbers = count()

    def __exit__(self, *error: object) -> None:
        """End it and free its memory; the counts stay."""
        import torch

        self.vllm.engine_core.shutdown()
        del self.vllm, self.runner
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def answers(self, prompts: Iterable[Sequence[int]], **params: Any) -> list[Any]:
        """vLLM's output for each prompt, greedy unless `params` say otherwise."""
        names = [self._add(prompt, params, "FINAL_ONLY") for prompt in prompts]
        found: dict[str, Any] = {}
        while self.vllm.has_unfinished_requests():
            found |= {output.request_id: output for output in self.vllm.step()}
        return [found[name] for name in names]

    def generate(self, prompts: Iterable[Sequence[int]], **params: Any) -> list[list[int]]:
        """Token ids of a completion per prompt."""
        return [list(a.outputs[0].token_ids) for a in self.answers(prompts, **params)]

    def serve(
        self,
        requests: Iterator[tuple[Sequence[int], Mapping[str, Any]]],
        clients: Callable[[], int],
    ) -> Generator[Served, None, None]:
        """Step after step of so many clients, who ask anew once they are answered, till closed.

        `requests`: prompts with their parameters, without end. The clock is that of the steps.
        """
        # When they were asked, and whether the first token is still awaited.
        asked, waiting, now = dict[str, float](), set[str](), 0.0
        try:
            while True:
                while len(asked) < clients():
                    name = self._add(*next(requests), "DELTA")
                    asked[name] = now
                    waiting.add(name)
                begin = time.perf_counter()
                outputs = self.vllm.step()
                seconds = time.perf_counter() - begin
                now += seconds
                answered = [output for output in outputs if output.outputs[0].token_ids]
                first = [now - asked[o.request_id] for o in answered if o.request_id in waiting]
                waiting.difference_update(output.request_id for output in answered)
                for output in outputs:
                    if output.finished:
                        del asked[output.request_id]
                tokens = sum(len(output.outputs[0].token_ids) for output in answered)
                yield Served(seconds, tokens, first)
        finally:
            self.vllm.abort_request(list(asked))

    def measure(
        self, name: str, prompt: Sequence[int], forward_times: bool = False, **params: Any
    ) -> dict[str, Any]:
        """Times and counts of one request.

        `forward_times`: also those of `modules` by themselves, medians per decoding step; they make
        a GPU wait in every step, so such a request's other times are not to be used there.
        """
        before, spent = dict(self.counts), dict[str, float]()
        took: list[float] = []
        parts: list[dict[str, float]] = []
        tokens: list[int] = []
        first = 0
        with timed(spent, self.modules() if forward_times else {}):
            begin = time.perf_counter()
            self._add(prompt, params, "CUMULATIVE", name)
            while self.vllm.has_unfinished_requests():
                outputs = self.vllm.step()
                now = time.perf_counter()
                took.append(1e3 * (now - begin))
                begin = now
                tokens = list(outputs[0].outputs[0].token_ids) if outputs else tokens
                parts.append(dict(spent))
                spent.clear()
                first = first or (len(took) if tokens else 0)
        assert first, "a request ends with at least one token"
        counts = {key: value - before[key] for key, value in self.counts.items()}
        figures = {
            "request": name,
            "prompt_tokens": len(prompt),
            "output_tokens": len(tokens),
            "output_ids": tokens,
            **counts,
            "tau": round(tau(counts["drafts"], counts["accepted"]) or 1.0, 6),
            "seconds": round(sum(took) / 1e3, 6),
            "ttft_ms": round(sum(took[:first]), 4),
            "tpot_ms": round(sum(took[first:]) / max(len(tokens) - 1, 1), 4),
            "steps_ms": [round(step, 4) for step in took[first:]],
        }
        # A full CUDA graph replays without its modules.
        for part in {part: None for step in parts[first:] for part in step}:
            seen = [step[part] for step in parts[first:] if part in step]
            figures[f"{part}_ms"] = round(statistics.median(seen), 4)
        return figures

    def modules(self) -> dict[str, list[Any]]:
        """Whose calls are the target's forward with its logits; of vLLM's own runner, which tells
        of no stages, also those that sample, and that draft."""
        (model,) = self.vllm.apply_model(lambda model: model)
        found = {"forward": [model, *logits_of(model)]}
        if not hasattr(self.runner, "stages"):
            found["sampler"] = [self.runner.sampler]
            if self.runner.speculative_config is not None:
                head = self.runner.drafter.model
                found["draft"] = [head, *logits_of(head)]
        return found

    def _add(
        self, prompt: Sequence[int], params: Mapping[str, Any], kind: str, name: str | None = None
    ) -> str:
        """`kind`: which of vLLM's `RequestOutputKind` its outputs are."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        name = str(next(self._numbers)) if name is None else name
        chosen = {"temperature": 0.0, "output_kind": RequestOutputKind[kind], **params}
        sampling = SamplingParams(**chosen)
        self.vllm.add_request(name, {"prompt_token_ids": list(prompt)}, sampling)
        return name


def logits_of(model: Any) -> list[Any]:
    """The modules of a vLLM model that make logits: `compute_logits` is no module's forward."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    return [module for module in model.modules() if isinstance(module, LogitsProcessor)]


@contextmanager
def timed(spent: dict[str, float], parts: Mapping[str, Sequence[Any]]) -> Iterator[None]:
    """While open, the milliseconds of every call of a part's modules are added to `spent`.

    For engines whose step tells nobody of its stages; a device is waited for.
    """
    begun: list[float] = []

    def began(*_: Any) -> None:
        begun.append(now_ms())

    def ended(part: str, *_: Any) -> None:
        spent[part] = spent.get(part, 0.0) + now_ms() - begun.pop()

    with ExitStack() as hooks:
        for part, modules in parts.items():
            for module in modules:
                hooks.enter_context(module.register_forward_pre_hook(began))
                hooks.enter_context(module.register_forward_hook(partial(ended, part)))
        yield


def now_ms() -> float:
    """Milliseconds, with nothing left to do on a device."""
    import torch

    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter() * 1e3
