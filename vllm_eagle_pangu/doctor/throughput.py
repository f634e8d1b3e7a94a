# SPDX-License-Identifier: Apache-2.0
"""The bench's E1 in short, on the demo pair."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_eagle_pangu.bench.config import (
    DEFAULT_SHAPE,
    BenchConfig,
    PromptConfig,
    ThroughputConfig,
)
from vllm_eagle_pangu.bench.experiments.base import ratio_text
from vllm_eagle_pangu.bench.run import run_bench
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding

NAME = "E1"
# The fastest of vLLM's own on this pair: docs/measured.md.
CHAIN = 6
REPEATS = 3


def measured(prompts: int, tokens: int) -> Iterator[Finding]:
    """A finding for each method, in turns on the same prompts, and for what failed."""
    config = BenchConfig(
        tokens=tokens,
        repeats=REPEATS,
        prompts=PromptConfig(count=prompts),
        throughput=ThroughputConfig(chains=(CHAIN,), trees=(DEFAULT_SHAPE,)),
    )
    with tempfile.TemporaryDirectory() as folder:
        run_bench(config, Path(folder), resume=False, only=None)
        found = json.loads((Path(folder) / "results.json").read_text("utf-8"))
    result = found["experiments"][NAME]
    for row in result["rows"]:
        yield Finding(f"{NAME} {row['method']}", OK, _said(row))
    for error in result["errors"]:
        first, _, log = error.partition("\n")
        yield Finding(NAME, WRONG, first, log=log)


def _said(row: dict[str, Any]) -> str:
    same = f"same tokens as plain {row.get('same_as_plain', '-')} of {row['prompts']}"
    mean = f"tau {row['tau'] or 1:.2f}"
    return f"{row['tokens_per_s']:.1f} tokens/s, {ratio_text(row)}, {mean}, {same}"
