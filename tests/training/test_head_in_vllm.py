# SPDX-License-Identifier: Apache-2.0
"""A head that we trained, in plain vLLM's `eagle3`: it loads, and accepts what we predict."""

import pytest
import torch

from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.draft_vocabulary import count_tokens, most_frequent
from vllm_eagle_pangu.training.evaluate import measure_acceptance
from vllm_eagle_pangu.training.generate import continue_tokens
from vllm_eagle_pangu.training.head_checkpoint import load_head, save_head
from vllm_eagle_pangu.training.teacher import Teacher, load_target
from vllm_eagle_pangu.training.train_head import train_head

STEPS, NEW_TOKENS = 3, 40
CONFIG = HeadConfig(
    taps=(1, 2, 3),
    draft_vocab_size=150,
    intermediate_size=96,
    rollout_steps=STEPS,
    max_tokens=40 * 32 * 60,
    other_lr=0.01,
    log_every=20,
    compile=False,
)


@pytest.mark.engine
def test_vllm_accepts_as_many_drafts_of_a_trained_head_as_the_replay_says(
    tmp_path, tiny_llama, engine
):
    from vllm import SamplingParams

    teacher = Teacher(load_target(tiny_llama, torch.float32), CONFIG.taps)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 256, (64, 4), generator=generator)
    samples = continue_tokens(teacher.model, prompts, 40, 1.0, generator)
    counts = count_tokens(samples, teacher.config.vocab_size)
    vocabulary = most_frequent(counts, CONFIG.draft_vocab_size)

    def batch_at(step: int) -> torch.Tensor:
        return samples.roll(step * 32, dims=0)[:32]

    head = train_head(CONFIG, teacher, vocabulary, batch_at, tmp_path / "run", 0, lambda _: None)
    save_head(head, vocabulary, tmp_path / "draft", torch.float32)
    head, vocabulary = load_head(tmp_path / "draft")
    asked = prompts[:8].tolist()
    expected = measure_acceptance(head, teacher, vocabulary, asked, NEW_TOKENS, STEPS)
    assert expected.chain_length > 1.2
    speculative = {
        "method": "eagle3",
        "model": str(tmp_path / "draft"),
        "num_speculative_tokens": STEPS,
    }
    with engine(tiny_llama, speculative_config=speculative, disable_log_stats=False) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS + 1, ignore_eos=True)
        llm.generate([{"prompt_token_ids": ids} for ids in asked], sampling, use_tqdm=False)
        counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    forwards = counted["vllm:spec_decode_num_drafts"]
    accepted = counted["vllm:spec_decode_num_accepted_tokens"]
    # The engine stops a walk at the last token, the replay runs over it.
    assert 1 + accepted / forwards == pytest.approx(expected.chain_length, abs=0.06)
