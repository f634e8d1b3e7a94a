# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.models.pangu_as_llama import load_target

from .cache import FAST_CACHE_REORDER
from .decoder import OracleDecoder, Trace

SHAPES = [TreeShape(1, 5, 5), TreeShape(2, 3, 6), TreeShape(4, 5, 16)]
PROMPTS = [[256, 72, 101, 108, 108, 111], [256, 81], [256, 7, 7, 7, 97]]
NEW_TOKENS = 40


@pytest.fixture(scope="module")
def oracle(tiny_pangu: Path, tiny_head: Path) -> OracleDecoder:
    return OracleDecoder(tiny_pangu, tiny_head)


@pytest.fixture(scope="module")
def by_branches(tiny_pangu: Path, tiny_head: Path) -> OracleDecoder:
    return OracleDecoder(tiny_pangu, tiny_head, verify="branches")


def gumbel(logits: torch.Tensor, position: int) -> int:
    """A draw at temperature 1 whose noise depends on the position only."""
    generator = torch.Generator().manual_seed(position)
    noise = -torch.rand(logits.shape, generator=generator).log()
    return int((logits.softmax(-1) / noise).argmax())


@pytest.fixture(scope="module")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.2,
    )
    folder = tmp_path_factory.mktemp("tiny") / "qwen3"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["pangu", "llama", "qwen3"])
def test_plain_decoding_is_transformers_greedy(kind: str, request: pytest.FixtureRequest):
    folder = request.getfixturevalue(f"tiny_{kind}")
    model = load_target(folder, torch.float32)
    for prompt in PROMPTS:
        expected = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=0,
        )[0, len(prompt) :]
        assert OracleDecoder(folder).plain(prompt, NEW_TOKENS) == expected.tolist()


@pytest.mark.parametrize("sampler", ["greedy", gumbel])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_trees_decode_what_plain_decoding_does(oracle: OracleDecoder, shape: TreeShape, sampler):
    accepted = 0
    for prompt in PROMPTS:
        trace = oracle.tree(prompt, NEW_TOKENS, shape, sampler)
        assert trace.tokens == oracle.plain(prompt, NEW_TOKENS, sampler)
        check_shape(trace, shape)
        accepted += sum(len(step.path) - 1 for step in trace.steps)
    assert accepted > 0


def test_wider_trees_accept_more(oracle: OracleDecoder):
    """The fixture is worth having: its head is right at times, and more often among several."""
    taus = [
        sum(fmean(len(s.emitted) for s in oracle.tree(p, 60, shape).steps) for p in PROMPTS)
        for shape in (TreeShape(1, 5, 5), TreeShape(4, 5, 16))
    ]
    assert 3 * 1.2 < taus[0] < taus[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ancestor_mask_and_replicated_branches_agree(
    oracle: OracleDecoder, by_branches: OracleDecoder, shape: TreeShape
):
    left = oracle.tree(PROMPTS[0], NEW_TOKENS, shape)
    right = by_branches.tree(PROMPTS[0], NEW_TOKENS, shape)
    assert left.tokens == right.tokens
    for a, b in zip(left.steps, right.steps, strict=True):
        assert (a.start, a.path, a.emitted) == (b.start, b.path, b.emitted)
        assert (a.tree.tokens, a.tree.parent) == (b.tree.tokens, b.tree.parent)
        torch.testing.assert_close(a.logits, b.logits, rtol=0, atol=1e-4)
    check_same_cache(oracle, by_branches)


def test_every_nodes_logits_are_those_of_decoding_its_path_alone(oracle: OracleDecoder):
    prompt = PROMPTS[2]
    trace = oracle.tree(prompt, 12, SHAPES[2])
    text = prompt + trace.tokens
    for step in trace.steps[:3]:
        for row in range(len(step.tree.tokens)):
            alone = text[: step.start] + [step.tree.tokens[r] for r in step.tree.path_to(row)]
            logits = full_forward(oracle, alone)
            torch.testing.assert_close(step.logits[row], logits, rtol=0, atol=1e-4)


def test_committed_cache_is_what_reading_the_text_writes(oracle: OracleDecoder):
    trace = oracle.tree(PROMPTS[0], NEW_TOKENS, SHAPES[2])
    last = trace.steps[-1]
    length = last.start + len(last.path)
    assert oracle.cache.length == length
    # The last step may have emitted more tokens than were asked for.
    text = PROMPTS[0] + trace.tokens[:1] + [t for step in trace.steps for t in step.emitted]
    cache = read_text(oracle, text[:length])
    for (key, value), layer in zip(oracle.cache.layers, cache.layers, strict=True):
        torch.testing.assert_close(key, layer.keys, rtol=0, atol=1e-4)
        torch.testing.assert_close(value, layer.values, rtol=0, atol=1e-4)


def test_on_a_chain_commit_by_length_equals_commit_by_path(
    oracle: OracleDecoder, by_branches: OracleDecoder
):
    for decoder in (oracle, by_branches):
        decoder.tree(PROMPTS[1], NEW_TOKENS, TreeShape(1, 4, 4))
    assert oracle.cache.fast_commits > 0
    assert by_branches.cache.fast_commits == by_branches.cache.full_commits == 0
    check_same_cache(oracle, by_branches)


def test_decoding_does_not_depend_on_the_fast_reorder(
    oracle: OracleDecoder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(FAST_CACHE_REORDER, "1")
    fast = oracle.tree(PROMPTS[0], NEW_TOKENS, SHAPES[1])
    assert (oracle.cache.fast_commits, oracle.cache.full_commits) == (len(fast.steps), 0)
    monkeypatch.setenv(FAST_CACHE_REORDER, "0")
    full = oracle.tree(PROMPTS[0], NEW_TOKENS, SHAPES[1])
    assert (oracle.cache.fast_commits, oracle.cache.full_commits) == (0, len(full.steps))
    assert fast.tokens == full.tokens
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(fast.steps, full.steps, strict=True))


def test_user_errors_name_the_key_and_the_mend(tiny_pangu: Path):
    with pytest.raises(ValueError, match=r"verify='both'.*'mask' or 'branches'"):
        OracleDecoder(tiny_pangu, verify="both")
    decoder = OracleDecoder(tiny_pangu)
    with pytest.raises(ValueError, match=r"head_folder=None.*pass its folder"):
        decoder.tree([256], 1, SHAPES[0])
    with pytest.raises(ValueError, match=r"sampler='random'.*'greedy'"):
        decoder.plain([256], 1, sampler="random")


def check_shape(trace: Trace, shape: TreeShape) -> None:
    for step in trace.steps:
        tree = step.tree
        assert len(tree.tokens) == shape.rows
        assert max(tree.depth) <= shape.depth
        for row in range(1, shape.rows):
            parent = tree.parent[row]
            assert parent < row
            assert tree.depth[row] == tree.depth[parent] + 1
            assert tree.score[row] <= tree.score[parent]
            assert tree.parent.count(parent) <= shape.width + (parent == 0)


def check_same_cache(left: OracleDecoder, right: OracleDecoder) -> None:
    assert left.cache.length == right.cache.length
    for a, b in zip(left.cache.layers, right.cache.layers, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def read_text(oracle: OracleDecoder, text: list[int]):
    cache = DynamicCache()
    oracle.target.forward(torch.tensor([text]), torch.arange(len(text))[None], cache)
    return cache


def full_forward(oracle: OracleDecoder, text: list[int]) -> torch.Tensor:
    positions = torch.arange(len(text))[None]
    logits, _ = oracle.target.forward(torch.tensor([text]), positions, DynamicCache())
    return logits[0, -1]
