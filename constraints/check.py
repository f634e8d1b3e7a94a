# SPDX-License-Identifier: Apache-2.0
"""Last step of `make setup`: stop on a CUDA torch, remove torch's companions that cannot load."""

import importlib.util
import subprocess
import sys

import torch

# transformers imports these when they are present, and dies with them when they are CUDA builds.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


def loads(package: str) -> bool:
    """A process of its own: a failed import leaves torch's operator registry half filled."""
    command = [sys.executable, "-c", f"import {package}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main(index_advice: str) -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        sys.exit(f"torch {torch.__version__} is not a CPU build. {index_advice}")
    for package in COMPANIONS:
        if importlib.util.find_spec(package) is not None and not loads(package):
            print(f"{package} does not load beside torch {torch.__version__}: removing it")
            subprocess.run([sys.executable, "-m", "pip", "uninstall", "-y", package], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
