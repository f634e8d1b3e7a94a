# SPDX-License-Identifier: Apache-2.0
"""The histogram of attention distances against the oracle's head, row after row."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from vllm_eagle_pangu.bench.attention_distance import WatchedHead, distance_rows, distances
from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training.hidden_states import Teacher

from ..reference.drafter import ReferenceDrafter
from ..tiny_pair import write_tiny_head

TEXT = list(b"def attention(self, rows):\n    return rows\n")


class Spy(ReferenceDrafter):
    """Notes the strongest key of every head as rows are decoded one by one."""

    def _attention(self, x, position, past):
        attended, own = super()._attention(x, position, past)
        size = self.config.head_dim
        query = self._linear("midlayer.self_attn.q_proj", x).view(1, -1, 1, size)
        cos, sin = self._rotary(x, torch.tensor([[position]]))
        query, _ = apply_rotary_pos_emb(query, query, cos, sin)
        keys = torch.stack([key for key, _ in [*past, own]], dim=1)
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[0], 0)
        self.seen.append(len(past) - (query[0] @ keys.transpose(1, 2))[:, 0].argmax(-1))
        return attended, own


@pytest.fixture(
    params=[{}, {"norm_before_fc": True, "fc_norm": True}, {"attention_bias": True}],
    ids=["plain", "norms", "biases"],
)
def looking_head(request, tmp_path):
    """The tiny head, which looks at itself alone, with random keys."""
    folder = write_tiny_head(tmp_path / "head", **request.param)
    weights = load_file(folder / "model.safetensors")
    name = "midlayer.self_attn.k_proj.weight"
    generator = torch.Generator().manual_seed(3)
    weights[name] = torch.randn(weights[name].shape, generator=generator)
    if "attention_bias" in request.param:
        for part in "qkvo":
            name = f"midlayer.self_attn.{part}_proj"
            size = len(weights[f"{name}.weight"])
            weights[f"{name}.bias"] = torch.randn(size, generator=generator)
    save_file(weights, folder / "model.safetensors")
    return folder


@torch.inference_mode()
def test_distances_are_those_of_decoding_row_by_row(tiny_pangu, looking_head):
    model = load_target(tiny_pangu, torch.float32)
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    spy = Spy(looking_head, embedding, output)
    spy.seen, past = [], []
    taps = Teacher(model, spy.taps).read(torch.tensor([TEXT]))[0, :, :-1].flatten(1)
    hidden = spy.combine(taps)
    for position, token in enumerate(TEXT[1:]):
        past.append(spy.row(token, hidden[position], position, past).key_value)
    expected = torch.stack(spy.seen, dim=1)

    watched = WatchedHead(looking_head, embedding)
    found = watched.strongest_key_distances(torch.tensor(TEXT), hidden[:-1])

    assert expected.unique().numel() > 5
    assert torch.equal(found, expected)
    both = distances(tiny_pangu, looking_head, [TEXT, TEXT[:1]])
    assert torch.equal(both, expected.flatten())


def test_bins_double_and_their_shares_add_up():
    rows = distance_rows(torch.tensor([0, 0, 1, 2, 3, 9]))
    assert [(row["from"], row["to"]) for row in rows] == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    assert [round(row["share"] * 6) for row in rows] == [2, 1, 2, 0, 1]
    assert rows[-1]["share_up_to"] == 1.0


def test_a_head_that_torch_alone_cannot_run_is_refused(tiny_pangu, tmp_path):
    two = write_tiny_head(tmp_path / "two", num_hidden_layers=2)
    with pytest.raises(ValueError, match=r"num_hidden_layers=2: .* one layer only"):
        distances(tiny_pangu, two, [TEXT])
    biased = write_tiny_head(tmp_path / "biased", attention_bias=True)
    with pytest.raises(RuntimeError, match=r"Missing key.*q_proj.bias"):
        distances(tiny_pangu, biased, [TEXT])
    (biased / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no \*.safetensors file"):
        distances(tiny_pangu, biased, [TEXT])
