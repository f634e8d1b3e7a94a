# SPDX-License-Identifier: Apache-2.0
"""The commands and the dataset that E5 hands to vLLM."""

from pathlib import Path

import pytest

from vllm_eagle_pangu.bench.config import BenchConfig, ConcurrencyConfig
from vllm_eagle_pangu.bench.experiments.base import Bench
from vllm_eagle_pangu.bench.experiments.concurrency import (
    bench_server,
    client_command,
    write_dataset,
)
from vllm_eagle_pangu.measure.method import PLAIN, tree
from vllm_eagle_pangu.measure.prompts import Conversations

from .test_prompts import WordTokenizer


def bench(config):
    talk = Conversations(WordTokenizer(), chat=False)
    return Bench(config, Path("target"), Path("head"), Path("out"), [], [], talk)


@pytest.fixture
def server():
    config = BenchConfig(concurrency=ConcurrencyConfig(levels=(1, 32)))
    return bench_server(tree((4, 5, 16)), bench(config))


def test_the_server_has_room_for_the_highest_level(server):
    command = server.command()
    # vLLM takes the last of a repeated flag.
    assert [flag for flag in command if "max-num-seqs" in flag][-1] == "--max-num-seqs=32"
    assert "--speculative-config" in command


def test_plain_decoding_is_served_without_speculation():
    config = BenchConfig(concurrency=ConcurrencyConfig())
    assert "--speculative-config" not in bench_server(PLAIN, bench(config)).command()


def test_vllm_takes_the_dataset_and_the_clients_flags(server, tmp_path):
    pytest.importorskip("vllm")
    from vllm.benchmarks.datasets import ShareGPTDataset
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Tokenizer(WordTokenizer):
        def __call__(self, text):
            return type("Encoded", (), super().__call__(text, add_special_tokens=False))

    dataset = tmp_path / "prompts.json"
    write_dataset(["one two three four", "five six seven eight nine"], 16, dataset)
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    command = client_command(server, dataset, 4, 3, tmp_path / "result.json")
    given = parser.parse_args(command[3:])
    assert (given.max_concurrency, given.num_prompts, given.ignore_eos) == (4, 3, True)
    data = ShareGPTDataset(dataset_path=given.dataset_path, disable_shuffle=given.disable_shuffle)
    asked = data.sample(Tokenizer(), given.num_prompts, output_len=given.sharegpt_output_len)
    assert [request.prompt for request in asked[:2]] == [
        "one two three four",
        "five six seven eight nine",
    ]
    lengths = [request.expected_output_len for request in asked]
    assert sorted(lengths[:2]) == [8, 16] and lengths[2] in lengths[:2]
