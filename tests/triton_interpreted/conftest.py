# SPDX-License-Identifier: Apache-2.0
"""Triton decides at import whether it interprets: these need TRITON_INTERPRET=1, see tests/run.py."""

from vllm_eagle_pangu.kernels.triton_runtime import interpreting

collect_ignore_glob = [] if interpreting() else ["test_*.py"]
