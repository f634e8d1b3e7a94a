# SPDX-License-Identifier: Apache-2.0
"""Print the folder of the packages that hold a CUDA build of vLLM, if this machine can run it.

Prints nothing elsewhere: the caller then installs vLLM's CPU build.
"""

import importlib.util
import os


def main() -> None:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None or importlib.util.find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        print(os.path.dirname(os.path.dirname(vllm.origin)))


main()
