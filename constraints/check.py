# SPDX-License-Identifier: Apache-2.0
"""Last step of `make setup`: stop on a CUDA torch, remove torch's companions that cannot load."""

import subprocess
import sys

import torch

from vllm_eagle_pangu.doctor.traps import failing_companions


def main(index_advice: str) -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        sys.exit(f"torch {torch.__version__} is not a CPU build. {index_advice}")
    for package in failing_companions():
        print(f"{package} does not load beside torch {torch.__version__}: removing it")
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "-y", package], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
