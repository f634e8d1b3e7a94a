# SPDX-License-Identifier: Apache-2.0
"""For `make test-ascend-lowering`: its environment has triton-ascend in Triton's place."""

import importlib.util

try:
    _has_ascend = importlib.util.find_spec("triton.backends.ascend") is not None
except ModuleNotFoundError:
    _has_ascend = False

collect_ignore_glob = [] if _has_ascend else ["test_*.py"]
