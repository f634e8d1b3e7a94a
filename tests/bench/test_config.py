# SPDX-License-Identifier: Apache-2.0
"""A benchmark YAML is taken or refused by key, value and mend."""

from pathlib import Path

import pytest
import yaml

from vllm_eagle_pangu.bench.config import SECTIONS, load_config

DEMO = Path(__file__).parents[2] / "configs" / "bench" / "demo.yaml"


def load(folder: Path, **content):
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_config(path)


def test_the_demo_configuration_runs_every_experiment():
    assert load_config(DEMO).chosen() == tuple(SECTIONS)


def test_a_section_without_keys_is_there_with_its_defaults(tmp_path):
    config = load(tmp_path, throughput=None, expectation={})
    assert config.chosen() == ("E1", "E7")
    assert config.throughput.trees == ((4, 5, 16), (3, 5, 12))


def test_only_picks_among_the_sections_in_their_order(tmp_path):
    config = load(tmp_path, throughput={}, stages={}, window={})
    assert config.chosen("e4, E1") == ("E1", "E4")
    with pytest.raises(ValueError, match=r"--only='E5'.*use E1, E3, E4"):
        config.chosen("E5")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"token": 5}, r"token=5: there is no such key; did you mean \"tokens\"\?"),
        ({"prompts": {"cuont": 5}}, r"prompts\.cuont=5: .*\"prompts\.count\""),
        ({"tokens": "many"}, r"tokens='many': must be a whole number, not str"),
        ({"tokens": True}, r"tokens=True: must be a whole number, not bool"),
        ({"repeats": 0}, r"repeats=0: must be at least 1"),
        ({"hosts": 1}, r"hosts=1: must be at least 2; set \"hosts\" to 2 or more"),
        ({"engine": 3}, r"engine=3: must be a section"),
        ({"engine": {"dtype": "half"}}, r"engine\.dtype='half': no such choice"),
        ({"tokens": 2000}, r"tokens=2000: leaves no room"),
        ({"target": "a", "head": "demo"}, r"head='demo'"),
        ({"prompts": {"source": "gsm8k"}}, r"prompts\.source='gsm8k'"),
        ({"prompts": {"source": "mt_bench"}}, r"prompts\.path=None: mt_bench does not"),
        ({"throughput": {"chains": 4}}, r"throughput\.chains=4: must be a list; write \[4\]"),
        ({"throughput": {"chains": [0]}}, r"throughput\.chains\[0\]=0: must be at least 1"),
        ({"throughput": {"trees": [[4, 5]]}}, r"throughput\.trees\[0\]=\[4, 5\]: a tree is W, D"),
        ({"throughput": {"trees": [[2, 2, 64]]}}, r"throughput\.trees\[0\]=.*at most 6 nodes"),
        ({"budget": {"nodes": [200]}}, r"budget\.nodes\[0\]=\[4, 5, 200\]"),
        ({"window": {"windows": [0]}}, r"window\.windows\[0\]=0: must be at least 1"),
        ({"concurrency": {"levels": [1, "two"]}}, r"concurrency\.levels\[1\]='two'"),
        ({"temperature": {"temperatures": [-1]}}, r"temperature\.temperatures\[0\]=-1: must be"),
        (
            {"temperature": {}, "engine": {"max_num_batched_tokens": 64}},
            r"engine\.max_num_batched_tokens=64: .*set it to max_model_len=1152",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load(tmp_path, **content)


def test_a_section_that_is_always_there_may_be_empty(tmp_path):
    assert load(tmp_path, engine=None, prompts=None) == load(tmp_path)


def test_a_file_that_holds_no_keys_is_refused(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(ValueError, match="holds no keys"):
        load_config(path)


def test_the_digest_changes_with_what_is_measured_and_not_with_where_it_goes(tmp_path):
    config = load(tmp_path, tokens=8)
    assert config.digest() == load(tmp_path, tokens=8, out="elsewhere").digest()
    assert config.digest() != load(tmp_path, tokens=9).digest()
