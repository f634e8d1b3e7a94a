# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu bench --config X.yaml`: measure, resume, report, compare."""

import argparse
from pathlib import Path

from vllm_eagle_pangu.bench.config import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the `bench` subcommand."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, help="benchmark YAML, see configs/bench")
    what.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("RUN", "RUN"),
        help="measure nothing: print whether the speed-ups of two runs agree",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where results go (the configuration's `out`)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on in that folder: only what is missing is run"
    )
    parser.add_argument("--only", metavar="E1,E4", help="these experiments of the configuration")


def run(arguments: argparse.Namespace) -> int:
    """Measure and write. 0, or 1 if anything failed: see the report."""
    from vllm_eagle_pangu.bench.agreement import agreement
    from vllm_eagle_pangu.bench.run import run_bench  # torch takes seconds to import

    if arguments.compare is not None:
        print(agreement(*arguments.compare))
        return 0
    config = load_config(arguments.config)
    out = arguments.out or Path(config.out)
    return run_bench(config, out, arguments.resume, arguments.only)
