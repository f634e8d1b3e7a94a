# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several test folders share: tiny checkpoints, written once per session."""

from pathlib import Path

import pytest

from .tiny_pair import write_tiny_head, write_tiny_llama, write_tiny_pangu


@pytest.fixture(scope="session")
def tiny_pangu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a 3-layer openPangu target in float32 with a byte tokenizer."""
    return write_tiny_pangu(tmp_path_factory.mktemp("tiny") / "pangu")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same target without biases, as a Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an EAGLE-3 head for `tiny_pangu` that is right more often than not."""
    return write_tiny_head(tmp_path_factory.mktemp("tiny") / "head")
