# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
from vllm_eagle_pangu.training.config import TargetConfig
from vllm_eagle_pangu.training.draft_vocabulary import DraftVocabulary
from vllm_eagle_pangu.training.evaluate import measure_acceptance
from vllm_eagle_pangu.training.generate import continue_tokens
from vllm_eagle_pangu.training.head import EagleHead, HeadShape, RolloutKeys
from vllm_eagle_pangu.training.head_checkpoint import load_head, save_head
from vllm_eagle_pangu.training.pretrain import build_target
from vllm_eagle_pangu.training.teacher import Teacher, load_target
from vllm_eagle_pangu.training.train_head import rollout_loss, rollout_targets

VOCABULARY = DraftVocabulary(torch.arange(0, 62, 2), 63)
TARGET = TargetConfig(
    hidden_size=32, intermediate_size=48, layers=3, heads=4, kv_heads=2, head_dim=8
)
SHAPE = HeadShape(
    hidden_size=32,
    target_hidden_size=32,
    intermediate_size=40,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab_size=63,
    draft_vocab_size=31,
    taps=(1, 3),
    rope_theta=10000.0,
    max_positions=128,
    rms_norm_eps=1e-5,
)


@pytest.fixture
def teacher() -> Teacher:
    torch.manual_seed(0)
    return Teacher(build_target(TARGET, 63), (1, 3))


def test_taps_are_the_residual_stream_after_that_many_layers(teacher):
    tokens = torch.arange(14).view(2, 7)
    states = teacher.read(tokens)
    hidden = teacher.model.model(tokens, output_hidden_states=True)
    torch.testing.assert_close(states.taps[..., :32], hidden.hidden_states[1])
    final = teacher.model.model.norm(states.taps[..., 32:])
    torch.testing.assert_close(final, hidden.last_hidden_state)


def test_first_rollout_step_is_a_plain_forward_of_the_head(teacher):
    torch.manual_seed(1)
    head = EagleHead(SHAPE)
    seen = []

    def spy(embeds, hidden, positions, past):
        result = head.advance(embeds, hidden, positions, past)
        seen.append(result[1])
        return result

    tokens = torch.randint(0, 63, (2, 12))
    rollout_loss(head, spy, teacher, VOCABULARY, tokens, steps=3, step_decay=0.8)
    states = teacher.read(tokens)
    embeds = teacher.embedding(tokens[:, 1:])
    plain = head.advance(embeds, head.fc(states.taps[:, :-1]), torch.arange(11), RolloutKeys())
    expected = head.lm_head(plain[1][:, :9])
    torch.testing.assert_close(head.lm_head(seen[0]), expected)


def test_rollout_targets_are_the_targets_distribution_over_the_draft_vocabulary(teacher):
    last = torch.randn(9, 32)
    probs, best = rollout_targets(teacher, last, VOCABULARY, rows=4)
    full = torch.softmax(last @ teacher.output_weight.T, dim=-1)
    part = full[:, VOCABULARY.target_ids]
    torch.testing.assert_close(
        probs.float(), part / part.sum(-1, keepdim=True), atol=2e-3, rtol=2e-2
    )
    for row, top in enumerate(full.argmax(-1).tolist()):
        assert best[row] == (top // 2 if VOCABULARY.t2d[top] else -1)


def test_head_checkpoint_has_the_names_and_config_keys_that_vllm_reads(tmp_path):
    head = EagleHead(SHAPE)
    save_head(head, VOCABULARY, tmp_path, torch.float32)
    loaded, vocabulary = load_head(tmp_path)
    assert torch.equal(vocabulary.target_ids, VOCABULARY.target_ids)
    for name, tensor in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert config["draft_vocab_size"] == 31 and config["vocab_size"] == 63


@pytest.mark.parametrize("taps", [(0, 2), (2, 1), (1, 4), (2, 2)])
def test_taps_outside_the_target_are_refused(taps):
    with pytest.raises(ValueError, match=r"head.taps=.*1..3"):
        Teacher(build_target(TARGET, 63), taps)


def test_targets_of_other_architectures_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ValueError, match=r"MambaForCausalLM.*PanguEmbeddedForCausalLM"):
        load_target(tmp_path)


def test_a_loaded_target_with_our_attention_computes_what_transformers_does(tmp_path):
    model = build_target(TARGET, 63).eval()
    save_llama_as_pangu(model, tmp_path, torch.float32)
    loaded = load_target(tmp_path, torch.float32)
    model.set_attn_implementation("eager")
    tokens = torch.from_numpy(np.arange(20).reshape(2, 10))
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_replayed_acceptance_equals_drafting_a_chain_at_every_step(teacher):
    torch.manual_seed(2)
    head, prompt, steps, count = EagleHead(SHAPE), [1, 5, 9, 20], 3, 12
    found = measure_acceptance(head, teacher, VOCABULARY, [prompt], count, steps)
    generator = torch.Generator()
    length = len(prompt) + count + steps
    text = continue_tokens(teacher.model, torch.tensor([prompt]), length, 0.0, generator)[0]
    place = forwards = 0
    while place < count:
        root = len(prompt) + place
        hidden = head.fc(teacher.read(text[None, :root]).taps)
        past, chain = RolloutKeys(), text[: root + 1].tolist()
        for step in range(steps):
            embeds = teacher.embedding(torch.tensor(chain[step + 1 : step + 1 + root])[None])
            positions = torch.arange(step, step + root)
            hidden, normed, past = head.advance(embeds, hidden, positions, past)
            chain.append(int(VOCABULARY.target_ids[head.lm_head(normed[0, -1]).argmax()]))
        drafts = chain[root + 1 :]
        right = [draft == int(true) for draft, true in zip(drafts, text[root + 1 :], strict=False)]
        place += [*right, False].index(False) + 1
        forwards += 1
    assert found.chain_length == pytest.approx(place / forwards)
    assert found.top_length >= found.chain_length
