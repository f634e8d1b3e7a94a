# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees learnt of a pair on a machine, kept for the next engine that decodes so.

Costs, chances and decisions are followed online all the same: an engine that starts from them only
needs no first look at what its steps take.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.env import LEARNT_DIR, learnt_dir
from vllm_eagle_pangu.tracing.manifest import write_json
from vllm_eagle_pangu.tracing.provenance import device_facts, versions

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig, VllmConfig

    from vllm_eagle_pangu.core.policy import TreePolicy
    from vllm_eagle_pangu.core.shape import TreeShape

logger = init_logger(f"vllm.{__name__}")

# Seconds from one time that it is kept to the next, each twice those before: `vllm serve` kills its
# engine where it ends, which loses no more.
APART = (4.0, 64.0)
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


class LearntFile:
    """Of one policy, in `folder`: the file that is named by what it is `of`."""

    def __init__(self, policy: AdaptiveShapes, folder: Path, of: dict[str, Any]) -> None:
        self.policy, self.of = policy, of
        name = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
        self.path = folder / f"{name}.json"
        self._apart, self._most = APART
        self._due = time.monotonic() + self._apart
        # As it was last read, or kept.
        self._known: dict[str, Any] | None = None

    def read(self) -> None:
        """Start from what is there, if it is of such a policy; else a warning says so."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["of"] != self.of:
                raise ValueError("it is of another pair, or machine")
            self.policy.resume(found["learnt"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "eagle_pangu: adaptive trees start anew: %s is not what was learnt (%s); it is "
                "written again as they learn",
                self.path,
                error,
            )
            return
        self._known = self.policy.learnt()
        logger.info("eagle_pangu: adaptive trees start from what was learnt: %s", self.path)

    def stepped(self) -> bool:
        """After each step: whether it was time to keep it."""
        due = time.monotonic() >= self._due
        if due:
            self.keep()
        return due

    def keep(self) -> None:
        """Write it, where anything was learnt since; a folder that cannot be written to is told of
        once."""
        self._apart = min(2 * self._apart, self._most)
        self._due = time.monotonic() + self._apart
        learnt = self.policy.learnt()
        if learnt == self._known or not learnt["_looks_of"]:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.path, {"of": self.of, "learnt": learnt}, indent=None)
        except OSError as error:
            logger.warning_once(
                "eagle_pangu: what adaptive trees learnt is not kept: %s. Set %s to a folder that "
                "can be written to, or to nothing",
                str(error),
                LEARNT_DIR,
            )
        self._known = learnt


def learnt_file(
    policy: "TreePolicy", config: "VllmConfig", largest: "TreeShape", device: "torch.device"
) -> LearntFile | None:
    """Of an engine's policy, read; None where it does not learn, or nothing is to be kept."""
    folder = learnt_dir()
    if folder is None or not isinstance(policy, AdaptiveShapes):
        return None
    assert config.speculative_config is not None
    target, head = config.model_config, config.speculative_config.draft_model_config
    of = {
        "target": _checkpoint(target),
        "head": _checkpoint(head),
        "dtype": str(target.dtype),
        "quantization": target.quantization,
        "tree": [largest.width, largest.depth, largest.nodes],
        "compiled": str(config.compilation_config.mode),
        "device": device_facts(str(device)),
        "versions": versions(),
    }
    # As it is read again.
    found = LearntFile(policy, folder, json.loads(json.dumps(of, default=str)))
    found.read()
    return found


def _checkpoint(model: "ModelConfig") -> list[Any]:
    """Its name, and of a folder also how large and how old its weights are: a head that is trained
    on is another one."""
    folder = Path(model.model)
    if not folder.is_dir():
        return [model.model, model.revision]
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    stats = [file.stat() for file in files]
    return [str(folder.resolve()), *((stat.st_size, stat.st_mtime_ns) for stat in stats)]
