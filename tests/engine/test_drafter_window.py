# SPDX-License-Identifier: Apache-2.0
"""`drafter_window`: the head drafts from the end of the context; what comes out stays exact."""

import pytest

from vllm_eagle_pangu.tracing import reader

pytestmark = pytest.mark.engine

PROMPTS = [list(range(40, 200)), list(b"a short one")]
SMALL = {"max_model_len": 256, "max_num_batched_tokens": 256, "max_num_seqs": 2}


@pytest.fixture
def drafted(engine, tiny_pangu, tiny_head, tree_config_of, tmp_path):
    """Tokens, and the trees behind them, of an engine with this window."""

    def run(window):
        folder = tmp_path / str(window)
        keys = {"trace_dir": str(folder)} | ({} if window is None else {"drafter_window": window})
        spec = tree_config_of(tiny_head, (3, 3, 9), **keys)
        with engine(tiny_pangu, spec, **SMALL) as running:
            tokens = running.generate(PROMPTS, max_tokens=24)
        found = reader.find_run(folder)
        steps = [record for record in reader.read_run(found) if record["kind"] == "step"]
        return tokens, [(step["tokens"], step["scores"]) for step in steps]

    return run


def test_a_window_changes_the_drafts_and_never_the_text(engine, tiny_pangu, drafted):
    with engine(tiny_pangu, None, **SMALL) as plain:
        expected = plain.generate(PROMPTS, max_tokens=24)
    whole_tokens, whole_trees = drafted(None)
    wide_tokens, wide_trees = drafted(256)
    narrow_tokens, narrow_trees = drafted(8)
    assert whole_tokens == wide_tokens == narrow_tokens == expected
    assert wide_trees == whole_trees
    assert narrow_trees != whole_trees
