# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_eagle_pangu.models.pangu_as_llama import load_target

from ..tiny_pair import write_tiny_head
from .drafter import ReferenceDrafter
from .target import ReferenceTarget

PROMPT = [256, *range(60, 75)]
VARIANTS = {
    "norm before residual": {},
    "every other option": {
        "norm_before_residual": False,
        "norm_before_fc": True,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [0, 2],
        "num_aux_hidden_states": 2,
    },
}


@pytest.mark.engine
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_rows_equal_vllms_eagle3_head(tiny_pangu: Path, tmp_path: Path, engine, options: dict):
    """Prompt and drafts of a real vLLM chain, replayed row by row with vLLM's own inputs."""
    head = write_tiny_head(tmp_path / "head", load_target(tiny_pangu, torch.float32), **options)
    chain = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    record = SimpleNamespace(taps=[], combined=[], passes=[])
    with engine(tiny_pangu, speculative_config=chain) as llm:
        llm.collective_rpc(watch_drafter, args=(record,))
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=2)
        llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)

    drafter = oracle_drafter(tiny_pangu, head)
    torch.testing.assert_close(
        drafter.combine(record.taps[0]), record.combined[0], rtol=0, atol=1e-4
    )
    past: list = []
    # The prompt's pass and the two that follow it; they append to the same pages.
    for inputs, outputs in record.passes[:3]:
        count = len(PROMPT) if not past else 1
        for index in range(count):
            row = drafter.row(
                int(inputs["input_ids"][index]),
                inputs["hidden_states"][index],
                int(inputs["positions"][index]),
                past,
            )
            past.append(row.key_value)
            logits = outputs["logits"][index, drafter.target_ids]
            torch.testing.assert_close(row.log_probs, logits.log_softmax(-1), rtol=0, atol=1e-3)
            torch.testing.assert_close(row.hidden, outputs["hidden"][index], rtol=0, atol=1e-3)
    assert len(past) == len(PROMPT) + 2


def test_missing_embedding_and_output_are_the_targets(tiny_pangu: Path, tmp_path: Path):
    target = ReferenceTarget(tiny_pangu)
    head = write_tiny_head(tmp_path, draft_vocab_size=259)
    weights = load_file(head / "model.safetensors")
    for name in ("lm_head.weight", "d2t", "t2d"):
        del weights[name]
    save_file(weights, head / "model.safetensors")
    drafter = oracle_drafter(tiny_pangu, head)
    row = drafter.row(5, target.embedding[7], 0, [])
    assert row.log_probs.shape == (259,)
    assert drafter.target_ids.tolist() == list(range(259))


def test_draft_ids_map_to_the_targets_by_offset(tiny_pangu: Path, tiny_head: Path):
    drafter = oracle_drafter(tiny_pangu, tiny_head)
    known = load_file(tiny_head / "model.safetensors")["t2d"]
    assert drafter.target_ids.tolist() == known.nonzero()[:, 0].tolist()


def test_unused_weights_are_refused_by_name(tiny_pangu: Path, tmp_path: Path):
    head = write_tiny_head(tmp_path, norm_before_fc=True)
    text = (head / "config.json").read_text()
    (head / "config.json").write_text(text.replace('"norm_before_fc": true', '"a": 0'))
    with pytest.raises(ValueError, match=r"unknown \['input_norm.weight'\]"):
        oracle_drafter(tiny_pangu, head)


def test_heads_of_two_layers_are_refused(tiny_pangu: Path, tmp_path: Path):
    head = write_tiny_head(tmp_path, num_hidden_layers=2)
    with pytest.raises(ValueError, match="num_hidden_layers=2"):
        oracle_drafter(tiny_pangu, head)


def oracle_drafter(target: Path, head: Path) -> ReferenceDrafter:
    loaded = ReferenceTarget(target)
    return ReferenceDrafter(head, loaded.embedding, loaded.output)


def watch_drafter(worker, record: SimpleNamespace) -> None:
    """Record what vLLM's drafter model gets and gives."""
    model = worker.model_runner.drafter.model
    combine = model.combine_hidden_states

    def combine_and_record(taps):
        record.taps.append(taps.clone())
        record.combined.append(combine(taps).clone())
        return record.combined[-1]

    def keep_pass(module, args, kwargs, output):
        last, following = output
        inputs = {name: kwargs[name].clone() for name in ("input_ids", "hidden_states")}
        inputs["positions"] = kwargs["positions"].clone()
        logits = model.compute_logits(last).clone()
        record.passes.append((inputs, {"logits": logits, "hidden": following.clone()}))

    model.combine_hidden_states = combine_and_record
    model.register_forward_hook(keep_pass, with_kwargs=True)
