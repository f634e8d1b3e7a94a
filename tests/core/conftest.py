# SPDX-License-Identifier: Apache-2.0
"""What the tests of policies share."""

from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def _no_other_time_passes(monkeypatch):
    """Than what steps are said to take: a busy machine changes no choice."""
    frozen = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr("vllm_eagle_pangu.core.costs.time", frozen)
