# SPDX-License-Identifier: Apache-2.0
"""Two runs are put side by side, and what moved is named."""

import json

import pytest

from vllm_eagle_pangu.bench.agreement import agreement
from vllm_eagle_pangu.cli import main

NAMES = ("method", "speedup", "speedup_min", "speedup_max")


def a_run(folder, *rows, experiment="E6", repeats=3, tau=4.0):
    folder.mkdir()
    plain = {"method": "plain", "speedup": 1.0, "repeats": repeats, "tau": None}
    written = [
        {"temperature": 0.5, "repeats": repeats, "tau": tau, **dict(zip(NAMES, row, strict=True))}
        for row in rows
    ]
    content = {"experiments": {experiment: {"rows": [plain, *written]}, "E3": {"rows": []}}}
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_spreads_that_touch_agree_and_others_are_named_with_their_gap(tmp_path):
    first = a_run(tmp_path / "a", ("tree", 2.0, 1.9, 2.1), ("chain", 1.5, 1.4, 1.6))
    second = a_run(tmp_path / "b", ("tree", 2.2, 2.1, 2.3), ("chain", 1.1, 1.0, 1.12))
    text = agreement(first, second)
    assert "1 of 2 speed-ups agree" in text
    assert "1 are less than a tenth apart; the furthest, by 25 %: E6 temperature 0.5 chain." in text
    assert "Of 3 repeats each, 10 % of spreads" in text
    assert "the one that moved most by 27 %" in text
    assert "| E6 | temperature 0.5 | tree | 2.00 (1.90 to 2.10) | 2.20 (2.10 to 2.30) |" in text
    assert text.count("touch |") == 1 and "25 % apart |" in text


def test_it_does_not_matter_which_run_is_named_first(tmp_path):
    runs = [
        a_run(tmp_path / name, ("tree", s, s - 0.1, s + 0.1)) for name, s in (("a", 2), ("b", 1))
    ]
    assert "73 % apart" in agreement(*runs)
    assert "73 % apart" in agreement(*reversed(runs))


def test_methods_that_accepted_otherwise_are_named(tmp_path):
    first = a_run(tmp_path / "a", ("tree", 2.0, 1.9, 2.1), ("chain", 1.5, 1.4, 1.6))
    second = a_run(tmp_path / "b", ("tree", 2.0, 1.9, 2.1), ("chain", 1.5, 1.4, 1.6), tau=4.2)
    assert "tau differs" not in agreement(first, first)
    assert "tau differs in 2, which decoded something else: tree, chain." in agreement(
        first, second
    )


def test_what_only_one_run_has_is_counted(tmp_path):
    first = a_run(tmp_path / "a", ("tree", 2.0, 1.9, 2.1))
    second = a_run(tmp_path / "b", ("tree", 2.0, 1.9, 2.1), experiment="E1")
    text = agreement(first, second)
    assert "no speed-up in common" in text and "2 are in one run only" in text


def test_the_command_prints_it_and_names_a_folder_without_results(tmp_path, capsys):
    folder = str(a_run(tmp_path / "a", ("tree", 2.0, 1.9, 2.1)))
    assert main(["bench", "--compare", folder, folder]) == 0
    assert "1 of 1 speed-ups agree" in capsys.readouterr().out
    assert main(["bench", "--compare", folder, str(tmp_path)]) == 2
    assert "no results.json there; name a finished run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench"])
