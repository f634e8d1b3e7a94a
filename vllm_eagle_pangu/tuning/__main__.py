# SPDX-License-Identifier: Apache-2.0
"""The process in which the tuner measures; `command.run` starts it."""

import sys

from vllm_eagle_pangu.tuning.command import measure
from vllm_eagle_pangu.tuning.settings import Settings

if __name__ == "__main__":
    sys.exit(measure(Settings.from_json(sys.argv[1])))
