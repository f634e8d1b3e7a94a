# SPDX-License-Identifier: Apache-2.0
"""A head that we trained, in plain vLLM's `eagle3`: it loads, and accepts what we predict; one that
drafts all levels at once, too."""

from dataclasses import replace

import pytest
import torch

from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training.answers import Request, write_answers
from vllm_eagle_pangu.training.config import AnswersConfig, HeadConfig
from vllm_eagle_pangu.training.head import save_head
from vllm_eagle_pangu.training.hidden_states import Teacher, load_rows, write_hidden_states
from vllm_eagle_pangu.training.run_folder import Ranks
from vllm_eagle_pangu.training.train_head import measure_acceptance, train_head

from .prepared import load_head, packed

STEPS, NEW_TOKENS = 3, 40
ANSWERS = AnswersConfig(
    dtype="float32", batch=16, max_tokens=36, max_model_len=128, kv_cache_bytes=1 << 26
)
CONFIG = HeadConfig(
    taps=(1, 2, 3),
    draft_vocab_size=150,
    intermediate_size=96,
    rollout_steps=STEPS,
    length=128,
    batch=8,
    held_out=4,
    max_tokens=48 * 1024,
    save_minutes=60.0,
    other_lr=0.01,
    log_every=20,
    compile=False,
)


@pytest.mark.engine
@pytest.mark.parametrize("parallel", [False, True])
def test_vllm_accepts_as_many_drafts_of_a_trained_head_as_the_replay_says(
    tmp_path, tiny_llama, engine, parallel
):
    from vllm import SamplingParams

    teacher = Teacher(load_target(tiny_llama, torch.float32), CONFIG.taps)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 256, (68, 4), generator=generator).tolist()
    prepared = tmp_path / "prepared"
    asked = [Request(ids, ANSWERS.max_tokens, 1.0) for ids in prompts]
    write_answers(ANSWERS, tiny_llama, asked, prepared, 0, Ranks())
    assert [row["input_ids"][:4].tolist() for row in load_rows(prepared)] == prompts
    write_hidden_states(prepared, teacher, Ranks())
    config = replace(CONFIG, parallel=parallel)
    head = train_head(config, teacher, prepared, tmp_path / "run", 0, Ranks())
    save_head(head, tmp_path / "draft", torch.float32)
    head = load_head(tmp_path / "draft")
    asked = [{"prompt_token_ids": ids} for ids in prompts[:8]]
    # The replay names what it can of so many more: no walk ends at the answer's end.
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS + STEPS + 1, ignore_eos=True)
    with engine(tiny_llama) as llm:
        answers = [list(o.outputs[0].token_ids) for o in llm.generate(asked, greedy)]
    texts = torch.tensor([ids + said for ids, said in zip(prompts, answers, strict=False)])
    replayed = [packed(teacher, text[None], prompt=4) for text in texts]
    expected = measure_acceptance(head, teacher, replayed, STEPS)["tau_chain"]
    assert expected > 1.2
    speculative = {
        "method": "eagle3",
        "model": str(tmp_path / "draft"),
        "num_speculative_tokens": STEPS,
        "parallel_drafting": parallel,
    }
    with engine(tiny_llama, speculative_config=speculative, disable_log_stats=False) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS + 1, ignore_eos=True)
        llm.generate(asked, sampling, use_tqdm=False)
        counted = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    forwards = counted["vllm:spec_decode_num_drafts"]
    accepted = counted["vllm:spec_decode_num_accepted_tokens"]
    # The engine stops a walk at the last token, the replay runs over it.
    assert 1 + accepted / forwards == pytest.approx(expected, abs=0.06)
