# SPDX-License-Identifier: Apache-2.0
"""A head with fewer positions than the target: drafts end there, and nothing else does."""

import pytest

from ..tiny_pair import write_tiny_head

pytestmark = pytest.mark.engine

POSITIONS = 64
TREE = (3, 3, 9)
# No tree fits behind this many committed tokens.
LAST = POSITIONS - 2 * (TREE[1] + 1)
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 256, "max_num_seqs": 3}
LONG, SHORT = list(range(40, 140)), list(b"a short one")


@pytest.fixture(scope="module")
def short_head(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "head"
    return write_tiny_head(folder, max_position_embeddings=POSITIONS)


@pytest.fixture(scope="module")
def plain(engine, tiny_pangu):
    """What the target decodes alone, 120 tokens for each prompt."""
    with engine(tiny_pangu, None, **SMALL) as running:
        return running.generate([LONG, SHORT], max_tokens=120)


class CountedPass:
    """The head's pass, and the greatest position of each call."""

    def __init__(self, run) -> None:
        self.run = run
        self.reached: list[int] = []
        self.rows: list[int] = []

    def __call__(self, tokens, positions, hidden, metadata, slots):
        self.reached.append(int(positions.max()))
        if slots is not None:
            self.rows.append(tokens.shape[0])
        return self.run(tokens, positions, hidden, metadata, slots)


def counted(running) -> CountedPass:
    head = running.runner.draft_head
    # So that committed rows are in passes, too.
    head.rowwise = False
    head.run = CountedPass(head.run)
    return head.run


def test_no_pass_of_the_head_runs_once_every_request_is_too_long(
    engine, tiny_pangu, short_head, plain, tree_config_of
):
    """Regression: the extend pass ran for requests that are never drafted for again."""
    with engine(tiny_pangu, tree_config_of(short_head, TREE), **SMALL) as trees:
        head = counted(trees)
        assert trees.generate([SHORT], max_tokens=120) == plain[1:]
        # Behind LAST a pass would be told the head's last position, as there is no other.
        assert LAST <= max(head.reached) < POSITIONS - 1
        head.reached.clear()
        # The first pass writes what another request with this prefix may read; no other follows.
        assert trees.generate([LONG], max_tokens=120) == plain[:1]
        assert len(head.reached) <= 1


def test_a_short_request_is_drafted_for_beside_a_long_one_without_its_rows(
    engine, tiny_pangu, short_head, plain, tree_config_of
):
    """Regression: the rows of requests beyond the head's length were in every extend pass."""
    with engine(tiny_pangu, tree_config_of(short_head, TREE), **SMALL) as trees:
        alone = counted(trees)
        trees.generate([SHORT], max_tokens=40)
        expected = list(alone.rows)
        trees.runner.draft_head.run = alone.run
        head = counted(trees)
        assert trees.generate([LONG, SHORT], max_tokens=120) == plain
    # The step of both prompts, then the short request's rows as if it were alone.
    assert head.rows[0] == len(LONG) + len(SHORT)
    assert head.rows[1 : len(expected)] == expected[1:]


def test_requests_of_both_lengths_and_kinds_share_a_step(
    engine, tiny_pangu, short_head, tree_config_of
):
    """Long and short requests come and go, prompts are cut into chunks: the text stays exact."""
    chunks = {**SMALL, "max_num_batched_tokens": 24}
    prompts = [LONG, SHORT, LONG[:50], SHORT * 4, LONG[30:], list(b"last")]
    with engine(tiny_pangu, None, **chunks) as running:
        expected = running.generate(prompts, max_tokens=40)
    spec = tree_config_of(short_head, TREE, verify_mode="reference")
    with engine(tiny_pangu, spec, **chunks) as trees:
        assert trees.generate(prompts, max_tokens=40) == expected


def test_a_raised_length_drafts_beyond_the_heads_positions(
    engine, tiny_pangu, short_head, plain, tree_config_of
):
    """Regression: a larger max_model_len was refused, and drafts ended at the head's positions."""
    spec = tree_config_of(short_head, TREE, max_model_len=256)
    with engine(tiny_pangu, spec, **SMALL) as trees:
        head = counted(trees)
        assert trees.generate([LONG, SHORT], max_tokens=120) == plain
        rotary = trees.runner.draft_head.model.model.layers[0].self_attn.rotary_emb
        metrics = {m.name: m for m in trees.llm.get_metrics()}
    assert rotary.cos_sin_cache.shape[0] >= 256
    assert max(head.reached) >= 200
    drafts = metrics["vllm:spec_decode_num_drafts"].value
    accepted = metrics["vllm:spec_decode_num_accepted_tokens"].value
    # 240 tokens in so few steps that most of them came from drafts behind position 64.
    assert accepted > drafts / 2
    assert drafts + accepted >= 220
