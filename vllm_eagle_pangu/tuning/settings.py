# SPDX-License-Identifier: Apache-2.0
"""What `eagle-pangu tune` was asked for, checked."""

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_eagle_pangu.config import refusal

BATCH_SIZES = (1, 4, 16)
TOKENS = 96
# A step may take 11 of them, and is only counted where they all are there.
MIN_TOKENS = 16
# What the tuner sets, and why the user may not.
OWN_ARGS = {
    "model": "it is --model",
    "speculative_config": "it is what is being tuned",
    "max_num_seqs": "it is the batch size",
    "enable_prefix_caching": "prompts are repeated, and must cost the same every time",
}


@dataclass(frozen=True)
class Settings:
    """One run of the tuner.

    `engine_args`: further arguments of `vllm.LLM`; those of the server that is being tuned for.

    Raises ValueError for a value of the wrong type or range.
    """

    model: str
    head: str
    prompts: str
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    tokens: int = TOKENS
    temperature: float = 0.0
    out: str = "tuned.json"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    sweep: bool = False

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not sizes or any(size < 1 for size in sizes) or len(set(sizes)) < len(sizes):
            raise refusal(
                "--batch-sizes",
                ",".join(map(str, sizes)),
                "must be different whole numbers of 1 or more",
                "write --batch-sizes 1,4,16",
            )
        if self.tokens < MIN_TOKENS:
            raise refusal(
                "--tokens",
                self.tokens,
                "too few steps to measure",
                f"set it to {MIN_TOKENS} or more",
            )
        if not 0 <= self.temperature <= 2:
            raise refusal(
                "--temperature",
                self.temperature,
                "must be between 0 and 2",
                "set it to what your requests use, 0 for greedy",
            )
        if not self.out.endswith(".json"):
            raise refusal("--out", self.out, "must end in .json", "write --out tuned.json")
        for key, reason in OWN_ARGS.items():
            if key in self.engine_args:
                raise refusal(
                    f"--engine-args {key}",
                    self.engine_args[key],
                    f"is set by the tuner: {reason}",
                    "remove it",
                )

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> "Settings":
        """Of the command line; `--demo` fills in the demo pair.

        Raises ValueError as the class does, and for a part that is missing.
        """
        chosen = {"model": arguments.model, "head": arguments.head, "prompts": arguments.prompts}
        engine_args = _json_object(arguments.engine_args)
        if arguments.demo:
            chosen = {key: value or _demo()[key] for key, value in chosen.items()}
            engine_args = _DEMO_ARGS | engine_args
        for key, value in chosen.items():
            if not value:
                raise refusal(
                    f"--{key}", value, "is needed", "give it, or --demo for the demo pair"
                )
        return cls(
            **chosen,
            batch_sizes=_sizes(arguments.batch_sizes),
            tokens=arguments.tokens,
            temperature=arguments.temperature,
            out=arguments.out,
            engine_args=engine_args,
            sweep=arguments.sweep,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        values = json.loads(text)
        return cls(**values | {"batch_sizes": tuple(values["batch_sizes"])})


# As `make demo` serves the pair; 256 MiB hold 16 of its longest prompts.
_DEMO_ARGS = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2**28}


def _demo() -> dict[str, str]:
    from vllm_eagle_pangu.demo import pair

    found = pair.find()
    return {
        "model": str(found.target),
        "head": str(found.draft),
        "prompts": str(found.prompts),
    }


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise refusal(
            "--batch-sizes", text, "must be whole numbers", "write --batch-sizes 1,4,16"
        ) from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise refusal(
            "--engine-args",
            text,
            "must be a JSON object",
            """write --engine-args '{"dtype": "bfloat16"}'""",
        )
    return value
