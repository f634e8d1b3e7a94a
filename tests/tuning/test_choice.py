# SPDX-License-Identifier: Apache-2.0
"""From figures to a choice and its files, without an engine."""

import csv
import json

import pytest

from vllm_eagle_pangu.config import TreeConfig
from vllm_eagle_pangu.core.shape import TreeShape
from vllm_eagle_pangu.core.speeds import Account
from vllm_eagle_pangu.measure.method import PLAIN, adaptive, chain, own_chain, tree
from vllm_eagle_pangu.tuning.choice import Choice, explained
from vllm_eagle_pangu.tuning.report import write
from vllm_eagle_pangu.tuning.settings import Settings
from vllm_eagle_pangu.tuning.tune import Outcome, methods

NARROW, WIDE, FOLLOWS = tree((2, 3, 6)), tree((4, 5, 16)), adaptive((4, 5, 16))
PAYS = Account(True, 430.0, 512.25, 0.0093, 0.0088, 0.00021, 0.0011, 0.002)


def test_the_fastest_at_each_batch_size_and_the_fastest_over_all():
    ratios = {1: {PLAIN: 1.0, NARROW: 1.5, WIDE: 2.0}, 16: {PLAIN: 1.0, NARROW: 1.4, WIDE: 0.8}}
    chosen = Choice(ratios)
    assert chosen.best == {1: WIDE, 16: NARROW} and chosen.overall == NARROW
    assert chosen.mean(NARROW) == pytest.approx((1.5 * 1.4) ** 0.5)
    first, second = chosen.verdict()
    assert first == "Fastest at batch 1, 16: tree-2-3-6, 1.45 x plain."
    assert second == "At batch 1 alone, tree-4-5-16 is 1.33 x as fast as that."


@pytest.mark.parametrize(
    ("fastest", "says"),
    [
        (PLAIN, "No speculation is fastest at batch 1: leave speculative_config out."),
        (chain(3), "Fastest at batch 1: chain-3, 2.00 x plain."),
        (own_chain(3), "Fastest at batch 1: own-chain-3, 2.00 x plain."),
        (FOLLOWS, "Fastest at batch 1: adaptive-4-5-16, 2.00 x plain."),
    ],
)
def test_chains_and_no_speculation_are_answers_too(fastest, says):
    ratios = {1: {PLAIN: 1.0, WIDE: 0.9} | ({} if fastest == PLAIN else {fastest: 2.0})}
    assert Choice(ratios).verdict() == [says]


def test_plain_decoding_is_the_choice_where_speculation_gains_next_to_nothing():
    chosen = Choice({1: {PLAIN: 1.0, WIDE: 1.01}})
    assert (chosen.overall, chosen.best) == (PLAIN, {1: PLAIN})


def test_why_trees_are_drafted_or_not_is_a_sentence():
    assert explained(4, PAYS) == (
        "batch 4: trees pay: 512 tokens/s expected against 430 plain; a plain step takes 9.3 ms, "
        "one with trees 8.8 + 0.21 a row + 1.1 a level + 2"
    )
    unknown = Account(False, *[0.0] * 7)
    assert "batch 1: trees do not pay: ? tokens/s expected against ? plain" in explained(1, unknown)


@pytest.mark.parametrize("sweep", [False, True])
def test_every_method_is_one_that_the_configuration_takes(sweep):
    found = methods("cpu", sweep)
    assert found[-1] == FOLLOWS and methods("cuda", sweep) == found[:-1]
    assert {NARROW, WIDE, chain(2)} < set(found) and len(set(found)) == len(found)
    for method in found:
        config = method.speculative_config("HEAD")
        if method.shape is not None:
            assert TreeConfig.split(config, {"method", "model"})[0].shape() == method.shape


def row(ratio: float, batch: int = 1) -> dict:
    return {
        "clients": batch,
        "method": "any",
        "tokens_per_s": 100 * ratio,
        "ratio": ratio,
        "least": ratio - 0.1,
        "most": ratio + 0.1,
        "tau": None if ratio == 1 else 2.54321,
        "answers": 7,
    }


def test_files_hold_the_configuration_the_table_the_reasons_and_the_provenance(tmp_path):
    out = tmp_path / "new" / "tuned.json"
    outcome = Outcome(Settings("T", "H", "p.jsonl", (1, 4), out=str(out)), "cpu", prompts=3)
    outcome.measured[1] = {PLAIN: row(1.0), WIDE: row(2.0), NARROW: row(1.5)}
    outcome.measured[4] = {PLAIN: row(1.0, 4), WIDE: row(1.1, 4), NARROW: row(1.2, 4)}
    outcome.accounts[4] = PAYS
    paths = write(outcome)
    assert [path.suffix for path in paths] == [".json", ".csv", ".md"]
    found = json.loads(out.read_text())
    assert found["speculative_config"] == WIDE.speculative_config("H")
    assert TreeShape(4, 5, 16) == WIDE.shape and found["method"] == WIDE.name
    assert found["by_batch_size"]["1"]["ratio_to_plain"] == 2.0
    assert "adaptive" not in found["by_batch_size"]["1"]
    assert found["by_batch_size"]["4"]["method"] == NARROW.name
    assert found["by_batch_size"]["4"]["adaptive"]["trees_per_s"] == 512.2
    assert found["by_batch_size"]["4"]["adaptive"]["pays"] is True
    assert found["provenance"]["versions"]["python"]
    chosen = [(one["clients"], one["method"], one["chosen"]) for one in found["measured"]]
    assert chosen == [
        (1, WIDE.name, "overall"),
        (1, NARROW.name, ""),
        (1, "plain", ""),
        (4, NARROW.name, "best"),
        (4, WIDE.name, "overall"),
        (4, "plain", ""),
    ]
    with paths[1].open() as lines:
        rows = list(csv.DictReader(lines))
    assert [one["method"] for one in rows] == [method for _, method, _ in chosen]
    assert rows[0]["tau"] == "2.543" and rows[2]["tau"] == "", "plain decoding drafts nothing"
    text = paths[2].read_text()
    assert "--speculative-config '{" in text and "| tree-4-5-16 |" in text
    assert explained(4, PAYS) in text
