# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.models.pangu_as_llama import load_target, save_llama_as_pangu
from vllm_eagle_pangu.training.config import TargetConfig
from vllm_eagle_pangu.training.head import EagleHead, RolloutKeys, save_head
from vllm_eagle_pangu.training.hidden_states import PackedBatch, Teacher
from vllm_eagle_pangu.training.pretrain import build_target
from vllm_eagle_pangu.training.train_head import measure_acceptance, rollout_loss, rollout_targets

from .prepared import load_head, packed, tiny_shape

TARGET_IDS = torch.arange(0, 62, 2)
TARGET = TargetConfig(
    hidden_size=32, intermediate_size=48, layers=3, heads=4, kv_heads=2, head_dim=8, max_tokens=1
)
SHAPE = tiny_shape((1, 3))


@pytest.fixture
def teacher() -> Teacher:
    torch.manual_seed(0)
    return Teacher(build_target(TARGET, 63), (1, 3))


def test_taps_are_the_residual_stream_after_that_many_layers(teacher):
    tokens = torch.arange(14).view(2, 7)
    states = teacher.read(tokens)
    hidden = teacher.model.model(tokens, output_hidden_states=True)
    assert states.shape == (2, 7, 3, 32)
    torch.testing.assert_close(states[:, :, 0], hidden.hidden_states[1])
    torch.testing.assert_close(states[:, :, 1], states[:, :, 2])
    final = teacher.model.model.norm(states[:, :, 2])
    torch.testing.assert_close(final, hidden.last_hidden_state)
    torch.testing.assert_close(teacher.logits(states[:, :, 2]), teacher.model(tokens).logits)


def test_first_rollout_step_is_a_plain_forward_of_the_head(teacher):
    torch.manual_seed(1)
    head = EagleHead(SHAPE, TARGET_IDS)
    seen = []

    hook = head.register_forward_hook(lambda _, __, found: seen.append(found[1]))
    tokens = torch.randint(0, 63, (2, 12))
    batch = packed(teacher, tokens)
    rollout_loss(head, teacher, batch, steps=3, step_decay=0.8)
    hook.remove()
    embeds = teacher.embedding(tokens[:, 1:])
    hidden = head.fc(batch.states[:, :-1, :-1].flatten(2))
    past = RolloutKeys.over(batch.document[:, :-1])
    plain = head(embeds, hidden, torch.arange(11), past)
    expected = head.lm_head(plain[1][:, :8])
    torch.testing.assert_close(head.lm_head(seen[0]), expected)


def test_rollout_targets_are_the_targets_distribution_over_the_draft_vocabulary(teacher):
    last = torch.randn(9, 32)
    probs, best = rollout_targets(teacher, last, TARGET_IDS, rows=4)
    full = torch.softmax(teacher.logits(last), dim=-1)
    part = full[:, TARGET_IDS]
    torch.testing.assert_close(
        probs.float(), part / part.sum(-1, keepdim=True), atol=2e-3, rtol=2e-2
    )
    assert best.tolist() == full.argmax(-1).tolist()


def test_head_checkpoint_has_the_names_and_config_keys_that_vllm_reads(tmp_path):
    head = EagleHead(SHAPE, TARGET_IDS)
    save_head(head, tmp_path, torch.float32)
    loaded = load_head(tmp_path)
    assert torch.equal(loaded.target_ids, TARGET_IDS)
    for name, tensor in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert config["draft_vocab_size"] == 31 and config["vocab_size"] == 63
    # transformers 4 and SGLang read these two.
    assert config["rope_theta"] == 10000.0 and config["torch_dtype"] == "float32"


@pytest.mark.parametrize("taps", [(0, 2), (2, 1), (1, 4), (2, 2)])
def test_taps_outside_the_target_are_refused(taps):
    with pytest.raises(ValueError, match=r"head.taps=.*1..3"):
        Teacher(build_target(TARGET, 63), taps)


def test_targets_of_other_architectures_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ValueError, match=r"MambaForCausalLM.*PanguEmbeddedForCausalLM"):
        load_target(tmp_path)


def test_a_loaded_target_computes_what_the_saved_one_did(tmp_path):
    model = build_target(TARGET, 63).eval()
    save_llama_as_pangu(model, tmp_path, torch.float32)
    loaded = load_target(tmp_path, torch.float32)
    tokens = torch.from_numpy(np.arange(20).reshape(2, 10))
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_only_what_the_target_spoke_in_the_same_document_carries_loss(teacher):
    torch.manual_seed(1)
    head = EagleHead(tiny_shape((1, 3), 62), torch.arange(62))
    tokens = torch.randint(0, 63, (1, 14))
    whole = packed(teacher, tokens)
    lone = PackedBatch(tokens, whole.document, whole.spoken.clone(), whole.states)
    lone.spoken[:] = torch.arange(14) == 5
    loss, shares = rollout_loss(head, teacher, lone, 1, 1.0)
    probs, best = rollout_targets(teacher, whole.states[0, 4:5, -1], head.target_ids)
    embeds, past = teacher.embedding(tokens[:, 1:5]), RolloutKeys.over(torch.zeros(1, 4))
    hidden = head.fc(whole.states[:, :4, :-1].flatten(2))
    _, normed, _ = head(embeds, hidden, torch.arange(4), past)
    logits = head.lm_head(normed[0, 3:])
    expected = -(probs.float() * torch.log_softmax(logits, -1)).sum()
    torch.testing.assert_close(loss, expected, atol=1e-2, rtol=1e-2)
    assert shares == [float(int(logits.argmax()) == int(best[0]))]
    cut = PackedBatch(tokens, (torch.arange(14) >= 4).long()[None], lone.spoken, whole.states)
    assert rollout_loss(head, teacher, cut, 1, 1.0)[0] == 0.0


def test_an_answer_packed_behind_another_is_drafted_as_alone(teacher):
    torch.manual_seed(3)
    head, steps = EagleHead(SHAPE, TARGET_IDS), 3
    alone = [packed(teacher, torch.randint(0, 63, (1, length)), prompt=4) for length in (11, 17)]
    both = PackedBatch(
        torch.cat([one.tokens for one in alone], 1),
        torch.cat([one.document + i for i, one in enumerate(alone)], 1),
        torch.cat([one.spoken for one in alone], 1),
        torch.cat([one.states for one in alone], 1),
    )
    found = [measure_acceptance(head, teacher, batches, steps) for batches in (alone, [both])]
    # Alone, an answer has no place for a rollout over its end; behind it here is another.
    assert found[0]["tau_top"] > 1.0
    second = both.document[0] == 1
    states = []
    for batch, anchors in ((alone[1], slice(0, 13)), (both, slice(11, 24))):
        rows = batch.tokens.shape[1] - 1
        hidden = head.fc(batch.states[:, :rows, :-1].flatten(2))
        past = RolloutKeys.over(batch.document[:, :rows])
        embeds = teacher.embedding(batch.tokens[:, 1:])
        hidden, _, past = head(embeds, hidden, torch.arange(rows), past)
        later = torch.cat([embeds[:, 1:], embeds[:, -1:]], 1)
        hidden, _, _ = head(later, hidden, torch.arange(1, rows + 1), past)
        states.append(hidden[:, anchors])
    assert int(second.sum()) == 17
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=1e-5)


def greedy(teacher: Teacher, prompt: list[int], length: int) -> list[int]:
    text = list(prompt)
    while len(text) < length:
        text.append(int(teacher.model(torch.tensor([text])).logits[0, -1].argmax()))
    return text


def test_replayed_acceptance_equals_drafting_a_chain_at_every_step(teacher):
    torch.manual_seed(2)
    head, prompt, steps, count = EagleHead(SHAPE, TARGET_IDS), [1, 5, 9, 20], 3, 12
    text = torch.tensor(greedy(teacher, prompt, len(prompt) + count + steps))
    batch = packed(teacher, text[None], prompt=len(prompt))
    found = measure_acceptance(head, teacher, [batch], steps)
    place = forwards = 0
    while place < count:
        root = len(prompt) + place
        hidden = head.fc(teacher.read(text[None, :root])[:, :, :-1].flatten(2))
        past = RolloutKeys.over(torch.zeros(1, root))
        chain = text[: root + 1].tolist()
        for step in range(steps):
            embeds = teacher.embedding(torch.tensor(chain[step + 1 : step + 1 + root])[None])
            positions = torch.arange(step, step + root)
            hidden, normed, past = head(embeds, hidden, positions, past)
            chain.append(int(TARGET_IDS[head.lm_head(normed[0, -1]).argmax()]))
        drafts = chain[root + 1 :]
        right = [draft == int(true) for draft, true in zip(drafts, text[root + 1 :], strict=False)]
        place += [*right, False].index(False) + 1
        forwards += 1
    assert found["tau_chain"] == pytest.approx(place / forwards)
    assert found["tau_top"] >= found["tau_chain"]
