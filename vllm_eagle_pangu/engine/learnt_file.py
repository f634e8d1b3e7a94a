# SPDX-License-Identifier: Apache-2.0
"""What adaptive trees learnt of a pair on a machine: said in the log, kept for the next engine.

Costs, chances and decisions are followed online all the same: an engine that starts from them only
needs no first look at what its steps take.
"""

import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from vllm_eagle_pangu.core.adaptive import AdaptiveShapes
from vllm_eagle_pangu.env import LEARNT_DIR, learnt_dir
from vllm_eagle_pangu.tracing.manifest import write_json
from vllm_eagle_pangu.tracing.provenance import device_facts, versions

if TYPE_CHECKING:
    from vllm.config import ModelConfig

    from vllm_eagle_pangu.core.policy import TreePolicy
    from vllm_eagle_pangu.engine.runner_start import TreeRunnerStart

logger = init_logger(f"vllm.{__name__}")

# Seconds of service till it is first said and kept, and then each time twice as many, up to these:
# `vllm serve` kills its engine where it ends, which loses no more.
APART = (4.0, 64.0)
# Longer than that no engine waits at its end for a file.
PATIENCE = 2.0
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


class LearntFile:
    """Of one policy, in `folder`: the file that is named by what it is `of`. None: nowhere."""

    def __init__(self, policy: AdaptiveShapes, folder: Path | None, of: dict[str, Any]) -> None:
        # As it is read again.
        self.policy, self.of = policy, json.loads(json.dumps(of, default=str))
        name = hashlib.sha256(json.dumps(self.of, sort_keys=True).encode()).hexdigest()[:16]
        self.path = folder and folder / f"{name}.json"
        # When it is kept next, once there was a step.
        self._due: float | None = None
        self._apart, self._most = APART
        # As it was last read, or kept; as it was last said.
        self._known: dict[str, Any] | None = None
        self._said = dict[int, bool]()
        self._writer: Thread | None = None

    def read(self) -> None:
        """Start from what is there; a warning says where that is not what such a policy learnt, and
        it starts anew."""
        if self.path is None:
            return
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["of"] != self.of:
                raise ValueError("it is of another pair, or machine")
            self.policy.resume(found["learnt"])
        except FileNotFoundError:
            return
        except Exception as error:  # whatever lies there, it is no reason not to serve
            said = "eagle_pangu: adaptive trees start anew, as %s cannot be used: %s"
            logger.warning(said, self.path, error)
            return
        self._known = self.policy.learnt()
        logger.info("eagle_pangu: adaptive trees start from what was learnt: %s", self.path)

    def stepped(self) -> bool:
        """After each step: whether it was time to say and keep it."""
        now = time.monotonic()
        if self._due is not None and now < self._due:
            return False
        first, self._due = self._due is None, now + self._apart
        if first:
            return False
        self._apart = min(2 * self._apart, self._most)
        self.say()
        self.keep()
        return True

    def say(self) -> None:
        """In the log, where trees pay, if that is another thing than it was."""
        decided = self.policy.decided()
        if decided == self._said:
            return
        self._said, found = decided, []
        for batch, pays in decided.items():
            account = self.policy.account(batch)
            rates = account.trees_per_s, account.plain_per_s
            trees, plain = (f"{rate:.0f}" if rate else "?" for rate in rates)
            found.append(f"{batch}: {'drafted' if pays else 'none'} ({trees} against {plain})")
        logger.info(
            "eagle_pangu: adaptive trees by requests at a time (tokens/s expected with them against"
            " without): %s",
            ", ".join(found),
        )

    def keep(self) -> None:
        """Have it written, where anything was learnt since, by a thread: a folder may be slow."""
        if self.path is None:
            return
        learnt = self.policy.learnt()
        waits = self._writer is not None and self._writer.is_alive()
        if waits or learnt == self._known or not self.policy.decided():
            return
        self._known = learnt
        self._writer = Thread(target=self._write, args=[self.path, learnt], daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Keep it, and wait for that."""
        self.keep()
        if self._writer is not None:
            self._writer.join(PATIENCE)

    def _write(self, path: Path, learnt: dict[str, Any]) -> None:
        """A folder that cannot be written to is told of once."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(path, {"of": self.of, "learnt": learnt}, indent=None)
        except OSError as error:
            logger.warning_once(
                "eagle_pangu: what adaptive trees learnt is not kept: %s. Set %s to a folder that "
                "can be written to, or to nothing",
                str(error),
                LEARNT_DIR,
            )


def learnt_file(policy: "TreePolicy", runner: "TreeRunnerStart") -> LearntFile | None:
    """Of an engine's policy, read; None where it does not learn."""
    if not isinstance(policy, AdaptiveShapes):
        return None
    config, speculative = runner.vllm_config, runner.speculative_config
    assert speculative is not None
    compilation = config.compilation_config
    told_apart = {
        "target": _checkpoint(config.model_config),
        "head": _checkpoint(speculative.draft_model_config),
        "load_format": config.load_config.load_format,
        "cache_dtype": config.cache_config.cache_dtype,
        "compiled": [compilation.mode, compilation.cudagraph_mode],
        "kernels": [runner.ops.implementation, runner.ops.attention],
        "trees": {k: v for k, v in asdict(runner.tree_config).items() if k[:5] != "trace"},
        "device": device_facts(str(runner.device)),
        "versions": versions(),
    }
    found = LearntFile(policy, learnt_dir(), told_apart)
    found.read()
    return found


def _checkpoint(model: "ModelConfig") -> list[Any]:
    """What tells one from another; of a folder also how large and how old its weights are: a head
    that is trained on is another one."""
    folder = Path(model.model)
    weights = [file for pattern in WEIGHTS for file in sorted(folder.glob(pattern))]
    stats = [file.stat() for file in weights if file.exists()]
    told_apart = str(folder.resolve()) if weights else model.model, model.revision
    ages = ((stat.st_size, stat.st_mtime_ns) for stat in stats)
    return [*told_apart, model.dtype, model.quantization, *ages]
