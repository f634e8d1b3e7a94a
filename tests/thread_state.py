# SPDX-License-Identifier: Apache-2.0
"""Torch's state of the main thread: the first test that leaves it changed fails, by name.

A key that stays excluded breaks no operator there and then, but every later compilation and
tensor subclass, in tests that have nothing to do with it.
"""

import sys
import threading
from collections.abc import Generator
from typing import Any

import pytest

EXPECTED = pytest.StashKey[dict[str, Any]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Around the teardown of all fixtures, a module's among them."""
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            expected, found = item.config.stash.get(EXPECTED, None) or fresh(), current()
            item.config.stash[EXPECTED] = found
            changed = [
                f"{k}: {expected[k]} -> {found[k]}" for k in found if found[k] != expected[k]
            ]
            if changed:
                pytest.fail(f"torch's thread state was left changed; {'; '.join(changed)}", False)


def current() -> dict[str, Any]:
    """What torch keeps for this thread and asks at every operator."""
    import torch

    return {
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
    }


def fresh() -> dict[str, Any]:
    """What a thread starts with."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(current()))
    thread.start()
    thread.join()
    return found[0]
