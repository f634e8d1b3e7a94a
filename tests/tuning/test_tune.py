# SPDX-License-Identifier: Apache-2.0
"""The tuner on real engines of the tiny pair. Nothing here asserts a time."""

import csv
import json

import pytest

pytest.importorskip("vllm")

from vllm_eagle_pangu.measure.method import PLAIN, adaptive, chain, tree
from vllm_eagle_pangu.models.registration import register_models
from vllm_eagle_pangu.tuning import tune
from vllm_eagle_pangu.tuning.command import measure
from vllm_eagle_pangu.tuning.engines import Engines
from vllm_eagle_pangu.tuning.settings import Settings

pytestmark = pytest.mark.engine

TEXTS = ["the first", "a second, longer one", "3.", "and the last of four"]
FOLLOWS = adaptive(tune.LARGEST)


@pytest.fixture
def settings(tiny_pangu, tiny_head, tmp_path, monkeypatch):
    """Of the tiny pair, in float32 as its checkpoint is."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    register_models()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return Settings(
        str(tiny_pangu),
        str(tiny_head),
        str(prompts),
        batch_sizes=(2, 1),
        tokens=32,
        out=str(tmp_path / "tuned.json"),
        engine_args={"dtype": "float32", "kv_cache_memory_bytes": 2**25},
    )


def test_a_whole_run_compares_every_method_in_groups_and_says_why(settings, monkeypatch, capsys):
    real = Engines.open

    def open_or_not(self, method):
        if method == chain(4):
            raise RuntimeError("not this one")
        return real(self, method)

    monkeypatch.setattr(Engines, "open", open_or_not)
    monkeypatch.setattr(Engines, "beside", lambda self: 2)
    monkeypatch.setattr(tune, "CHAINS", (2, 4))
    monkeypatch.setattr(tune, "SHAPES", ((2, 3, 6),))
    monkeypatch.setattr(tune, "SECONDS", 1.0)
    monkeypatch.setattr(tune, "ROUNDS", 1)
    measure(settings)
    said = capsys.readouterr().out
    assert "chain-4: left out, vLLM does not start it: not this one" in said
    assert "2 engines take turns: plain, chain-2" in said
    assert f"3 engines take turns: plain, {tree((2, 3, 6)).name}, {FOLLOWS.name}" in said
    out = settings.out
    assert out in said and "batch 2: trees " in said and "batch 1: trees " in said

    with open(out) as file:
        found = json.load(file)
    names = {method.name for method in (PLAIN, chain(2), tree((2, 3, 6)), FOLLOWS)}
    for batch in settings.batch_sizes:
        rows = {row["method"]: row for row in found["measured"] if row["clients"] == batch}
        assert rows.keys() == names
        assert all(rows["plain"][key] == 1 for key in ("ratio", "least", "most"))
        assert rows["plain"]["tau"] is None and rows[tree((2, 3, 6)).name]["tau"] > 1
        account = found["by_batch_size"][str(batch)]["adaptive"]
        assert min(account[key] for key in ("plain_s", "forward_s", "level_s", "rest_s")) > 0
        assert account["plain_per_s"] == pytest.approx(batch / account["plain_s"], rel=1e-3)
    chosen = [row["method"] for row in found["measured"] if row["chosen"] == "overall"]
    assert chosen == [found["method"]] * 2
    with open(out.replace(".json", ".csv")) as file:
        assert len(list(csv.DictReader(file))) == len(found["measured"]) == 8
    with open(out.replace(".json", ".md")) as file:
        assert found["verdict"][0] in file.read()


def test_an_argument_that_vllm_does_not_know_is_refused():
    settings = Settings("T", "H", "p", engine_args={"max_modle_len": 8})
    with pytest.raises(ValueError, match="max_modle_len=8: vLLM has no such argument"):
        Engines(settings, 128)


def test_a_share_of_a_device_that_leaves_no_room_for_a_second_engine_is_refused(monkeypatch):
    monkeypatch.setattr(Engines, "device", "cuda")
    settings = Settings("T", "H", "p", engine_args={"gpu_memory_utilization": 0.9})
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0.9: .*set it to 0.45 or less"):
        Engines(settings, 128)
    assert Engines(Settings("T", "H", "p"), 128).beside() == 1
    settings = Settings("T", "H", "p", engine_args={"gpu_memory_utilization": 0.2})
    assert Engines(settings, 128).beside() == 3


def test_what_the_user_can_mend_ends_the_measuring_process_with_2(settings, capsys):
    settings.engine_args["max_model_len"] = 40
    with pytest.raises(SystemExit, match="2"):
        measure(settings)
    assert "max_model_len=40: no prompt leaves room" in capsys.readouterr().err
