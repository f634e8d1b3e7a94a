# SPDX-License-Identifier: Apache-2.0
"""Where things are kept that outlive a process: compiled C++ ops, and more."""

import os
from pathlib import Path

CACHE_DIR = "EAGLE_PANGU_CACHE_DIR"


def cache_dir() -> Path:
    """EAGLE_PANGU_CACHE_DIR, or the user's cache folder."""
    chosen = os.environ.get(CACHE_DIR)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eagle-pangu"
