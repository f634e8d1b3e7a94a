# SPDX-License-Identifier: Apache-2.0
"""From figures to a choice and its files, without an engine."""

import csv
import json

import pytest

from vllm_eagle_pangu.config import TreeConfig
from vllm_eagle_pangu.core.shape import TreeShape, chain_shape
from vllm_eagle_pangu.measure.method import PLAIN, chain, of_shape
from vllm_eagle_pangu.tuning import choice, grid
from vllm_eagle_pangu.tuning.choice import Choice, Sweep, mean_ratio, verdict
from vllm_eagle_pangu.tuning.prediction import Prediction, finalists
from vllm_eagle_pangu.tuning.probing import Probes, StepCost, never_falling
from vllm_eagle_pangu.tuning.race import Times
from vllm_eagle_pangu.tuning.report import write
from vllm_eagle_pangu.tuning.settings import Settings
from vllm_eagle_pangu.tuning.tune import Outcome

NARROW, WIDE = of_shape(TreeShape(2, 3, 6)), of_shape(TreeShape(4, 5, 16))


def times(rate: float) -> Times:
    return Times(seconds=[[1.0, 2.0, 1.0]], tokens=[[rate, rate, rate]], drafts=10, accepted=20)


def expected(shape: TreeShape, rate: float) -> Prediction:
    return Prediction(shape, tau=2.0, draft_ms=1.0, verify_ms=2.0, tokens_per_s=rate)


def test_a_method_counts_with_the_median_of_its_rounds():
    raced = Times(seconds=[[1.0, 9.0, 2.0], [3.0, 3.0, 3.0]], tokens=[[10] * 3, [20] * 3])
    assert raced.tokens_per_s == pytest.approx(30 / (2.0 + 3.0))
    assert raced.range_per_s == (pytest.approx(30 / 12), pytest.approx(30 / 4))
    assert raced.tau is None
    assert times(1).tau == 3.0


def test_costs_are_lines_in_depth_and_extend_is_that_of_the_shapes_own_depth():
    probes = Probes.empty(2, widths=(1, 2), depths=(2, 4), budgets=(1, 4))
    for (width, depth), cell in probes.draft_ms.items():
        cell.extend([1.0 + (depth - 1) * (0.5 + 0.1 * width)] * 3)
    for nodes, cell in probes.verify_ms.items():
        cell.extend([2.0 + nodes] * 3)
    cost = StepCost.fitted(probes, max_depth=4)
    assert cost.row_ms == pytest.approx(0.1)
    assert cost.draft(TreeShape(2, 3, 4)) == pytest.approx(1.0 + 2 * 0.7 - 0.1)
    assert cost.step(TreeShape(2, 4, 4)) == pytest.approx(1.0 + 3 * 0.7 + 6.0)
    assert not cost.knows(TreeShape(2, 4, 5)) and not cost.knows(TreeShape(3, 4, 4))


def test_budgets_seen_too_rarely_are_not_judged():
    probes = Probes.empty(1, widths=(1,), depths=(2,), budgets=(1, 2))
    probes.verify_ms[1] += [1.0] * 3
    probes.verify_ms[2] += [1.0] * 2
    assert probes.verify() == {1: 1.0}


def test_probes_take_turns_and_never_ask_for_more_than_a_growth_holds():
    probes = Probes.empty(1, widths=(1, 2), depths=(2, 3), budgets=(1, 2, 4, 8))
    for _ in range(200):
        shape = probes.next_shape()
        probes.draft_ms[shape.width, shape.depth].append(1.0)
        probes.verify_ms[shape.nodes].append(1.0)
    assert {len(cell) for cell in probes.draft_ms.values()} == {50}
    assert min(len(cell) for cell in probes.verify_ms.values()) >= 40 and probes.enough()


def test_costs_that_fall_are_pooled():
    assert never_falling({1: 1.0, 2: 3.0, 3: 2.0, 4: 4.0}) == {1: 1.0, 2: 2.5, 3: 2.5, 4: 4.0}
    assert never_falling({3: 1.0, 2: 2.0, 1: 6.0}) == {1: 3.0, 2: 3.0, 3: 3.0}


def test_every_shape_of_the_grid_is_one_that_the_configuration_takes():
    for shape in grid.shapes(grid.BUDGETS):
        config = of_shape(shape).speculative_config("HEAD")
        assert TreeConfig.split(config, {"method", "model"})[0].shape() == shape


@pytest.mark.parametrize(("batch", "most"), [(1, 64), (4, 48), (16, 14), (300, 1)])
def test_budgets_shrink_as_the_batch_grows(batch, most):
    assert max(grid.budgets(batch, "cpu")) == most
    assert grid.largest(most).depth == grid.DEPTH


def test_finalists_differ_in_growth_and_chains_are_the_best_and_a_shorter_one():
    shapes = [TreeShape(4, 5, 16), TreeShape(4, 5, 12), TreeShape(2, 3, 6), chain_shape(4)]
    rows = [expected(shape, 100.0 - i) for i, shape in enumerate(shapes)]
    (methods,) = finalists({1: rows}).values()
    assert methods == [
        PLAIN,
        chain(4),
        chain(3),
        of_shape(shapes[0]),
        of_shape(shapes[2]),
        of_shape(shapes[3]),
    ]


def test_what_is_good_at_every_batch_size_is_run_at_every_batch_size():
    small, large, both = TreeShape(4, 5, 16), TreeShape(2, 2, 3), TreeShape(3, 3, 6)
    chosen = finalists(
        {
            1: [expected(small, 100.0), expected(both, 95.0), expected(large, 50.0)],
            8: [expected(large, 400.0), expected(both, 380.0), expected(small, 100.0)],
        }
    )
    for methods in chosen.values():
        assert of_shape(both) in methods and PLAIN in methods
    assert of_shape(small) in chosen[1] and of_shape(large) in chosen[8]


def test_the_fastest_at_each_batch_size_and_the_fastest_over_all():
    raced = {
        1: {PLAIN: times(100), NARROW: times(150), WIDE: times(200)},
        16: {PLAIN: times(1000), NARROW: times(1400), WIDE: times(800)},
    }
    chosen = Choice.of(raced)
    assert chosen.best == {1: WIDE, 16: NARROW} and chosen.overall == NARROW
    assert mean_ratio(raced, NARROW) == pytest.approx((1.5 * 1.4) ** 0.5)
    first, second = verdict(raced, chosen)
    assert first == "A tree is fastest at batch 1, 16: tree W=2 D=3 M=6, 1.45 x plain."
    assert second == "At batch 1 alone, tree W=4 D=5 M=16 is 1.33 x as fast as that."


@pytest.mark.parametrize(
    ("fastest", "says"),
    [
        (PLAIN, "No speculation is fastest at batch 1: leave speculative_config out."),
        (chain(3), "A chain is fastest at batch 1: eagle3 K=3, 2.00 x plain."),
        (of_shape(chain_shape(3)), "A chain is fastest at batch 1: chain 3, 2.00 x plain."),
    ],
)
def test_chains_and_no_speculation_are_answers_too(fastest, says):
    raced = {1: {PLAIN: times(100), WIDE: times(90)}}
    raced[1][fastest] = times(100 if fastest == PLAIN else 200)
    assert verdict(raced, Choice.of(raced)) == [says]


def test_plain_decoding_is_the_choice_where_speculation_gains_next_to_nothing():
    raced = {1: {PLAIN: times(100), WIDE: times(101)}}
    assert Choice.of(raced) == Choice(PLAIN, {1: PLAIN})


def test_a_sweep_judges_the_choice_by_its_leaders_run_again(monkeypatch):
    rates = {PLAIN: 50, NARROW: 100, WIDE: 108, chain(2): 80, chain(3): 90}
    again = rates | {WIDE: 104}
    groups = []

    def raced(engines, methods, prompts, batch_size, say, **options):
        groups.append(list(methods))
        return {method: times((again if options else rates)[method]) for method in methods}

    monkeypatch.setattr(choice, "race", raced)
    found = choice.sweep(TwoAtATime(), NARROW, list(rates), [], 1, lambda line: None)
    assert groups[:-1] == [[NARROW, m] for m in rates if m != NARROW]
    assert groups[-1] == [NARROW, WIDE, chain(3), chain(2)]
    assert found.relative[WIDE] == 1.08 and found.reached == pytest.approx(1 / 1.04)


class TwoAtATime:
    def beside_each_other(self) -> int:
        return 2


def test_every_method_of_the_sweep_can_be_run_at_its_batch_size():
    for batch in (1, 4, 16, 64):
        names = choice.candidates(batch, "cpu")
        assert PLAIN in names and chain(1) in names
        assert all(m.shape is None or m.shape.nodes * batch < 256 for m in names)
    assert len(choice.candidates(1, "cpu")) == 24


def test_files_hold_the_configuration_the_table_and_the_provenance(tmp_path):
    out = tmp_path / "new" / "tuned.json"
    outcome = Outcome(Settings("T", "H", "p.jsonl", (1,), out=str(out)), "cpu", prompts=3)
    outcome.costs[1] = StepCost(1, 4, {6: 2.0, 16: 3.0}, {2: 1.0}, {2: 0.5}, 0.1)
    outcome.predicted[1] = [expected(WIDE.shape, 300.0), expected(NARROW.shape, 200.0)]
    outcome.raced[1] = {PLAIN: times(100), WIDE: times(200)}
    outcome.swept[1] = Sweep({NARROW: 1.1, PLAIN: 0.5}, {NARROW: 1.04, PLAIN: 0.5})
    paths = write(outcome)
    assert [path.suffix for path in paths] == [".json", ".csv", ".md"]
    found = json.loads(out.read_text())
    assert found["speculative_config"] == {
        "method": "eagle_pangu",
        "model": "H",
        "num_speculative_tokens": 16,
        "tree_width": 4,
        "tree_depth": 5,
    }
    assert found["by_batch_size"]["1"]["ratio_to_plain"] == 2.0
    assert found["sweep"]["1"]["reached"] == pytest.approx(1 / 1.04, abs=1e-3)
    assert found["provenance"]["versions"]["python"]
    with paths[1].open() as lines:
        rows = {row["method"]: row for row in csv.DictReader(lines)}
    assert rows[WIDE.title]["expected_tokens_per_s"] == "300.0"
    assert rows[WIDE.title]["chosen"] == "overall" and rows[PLAIN.title]["expected_tau"] == ""
    assert rows[NARROW.title]["sweep_share_of_choice"] == "1.1"
    text = paths[2].read_text()
    assert "--speculative-config '{" in text and "| tree W=4 D=5 M=16 |" in text
