# SPDX-License-Identifier: Apache-2.0
"""The CPU worker: vLLM's, with a model runner that decodes trees."""

from typing import TYPE_CHECKING, Any

import vllm.v1.worker.cpu_worker as vllm_cpu_worker
from vllm.utils import length_from_prompt_token_ids_or_embeds
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from vllm_eagle_pangu.engine.draft_head import DraftHead
from vllm_eagle_pangu.engine.llama_head import LlamaHead, is_plain_llama
from vllm_eagle_pangu.engine.runner import TreeRunnerMixin
from vllm_eagle_pangu.engine.worker import TreeWorkerMixin

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class TreeCPUModelRunner(TreeRunnerMixin, CPUModelRunner):
    """vLLM's V1 CPU runner plus the tree step, and prompts in several chunks with a seed."""

    device_implementation = "cpp"
    strided_pages = True
    emits_first = True

    def load_head(self) -> DraftHead:
        """See `TreeRunnerMixin`: the fastest that runs this head."""
        head_class = LlamaHead if is_plain_llama(self.drafter.model) else DraftHead
        return head_class(self.drafter, self.ops)

    # Why: after a prompt's chunk vLLM takes back the draw that nobody wanted by the generator's
    #   offset, which CPU generators lack: a seeded request with a long prompt ends the engine.
    # How: such requests draw without their generator, and vLLM does not see it till the step is
    #   over. So the first draw is the first emitted token's, as without chunks.
    # Upstream: GPUModelRunner._bookkeeping_sync, vllm/v1/worker/gpu_model_runner.py.
    # Remove when: vLLM rewinds CPU generators itself.
    def sample_tokens(self, *args: Any, **kwargs: Any) -> ModelRunnerOutput:
        """See `TreeRunnerMixin`."""
        generators = self.input_batch.generators
        discarded = [request for request in generators if self.discard_request_mask.np[request]]
        set_aside = {request: generators.pop(request) for request in discarded}
        try:
            return super().sample_tokens(*args, **kwargs)
        finally:
            generators.update(set_aside)

    def does_as_vllm(self, scheduler_output: "SchedulerOutput") -> bool:
        """See `TreeRunnerMixin`: where no draw of a generator, which is who has a seed's, is to be
        taken back."""
        new = [request.sampling_params for request in scheduler_output.scheduled_new_reqs]
        seeded = any(params is not None and params.seed is not None for params in new)
        seeded = seeded or bool(self.input_batch.generators)
        return not seeded or self._reads_to_the_end(scheduler_output)

    def _reads_to_the_end(self, step: "SchedulerOutput") -> bool:
        """Whether none of the step's prompts is read in part. A chunk may be of one row, as what is
        decoded."""
        rows, cached = step.num_scheduled_tokens, step.scheduled_cached_reqs
        return all(
            computed + rows[name] >= self.requests[name].num_tokens
            for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        ) and all(
            new.num_computed_tokens + rows[new.req_id]
            >= length_from_prompt_token_ids_or_embeds(new.prompt_token_ids, new.prompt_embeds)
            for new in step.scheduled_new_reqs
        )


class TreeCPUWorker(TreeWorkerMixin, vllm_cpu_worker.CPUWorker):
    """Chosen through `parallel_config.worker_cls` when the method is eagle_pangu."""

    runner = TreeCPUModelRunner
    lent_to = (vllm_cpu_worker, "CPUModelRunner")

    def note_arrivals(self, count: int) -> None:
        """So many requests came while the last step ran."""
        self.model_runner.others_waiting += count
