# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu train --config X.yaml`: runs, or resumes, the stages of a training file."""

import argparse
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from vllm_eagle_pangu.checked import checked, read_yaml
from vllm_eagle_pangu.training.config import TrainConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, help="training YAML, see configs/train"
    )


def run(args: argparse.Namespace) -> int:
    """Run the stages, or go on with them. 0, or 1 where the engine dies."""
    from vllm_eagle_pangu.training.stages import run_stages  # torch takes seconds to import

    try:
        run_stages(checked(TrainConfig, read_yaml(args.config)))
    except BrokenProcessPool:
        print("eagle-pangu train: vLLM's engine ended; what it said is above", file=sys.stderr)
        return 1
    return 0
