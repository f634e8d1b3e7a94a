# SPDX-License-Identifier: Apache-2.0
"""What `eagle-pangu tune` was asked for, checked, and its prompts as token ids."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vllm_eagle_pangu.checked import json_object, refusal
from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.measure.prompts import Conversations, read_texts, spread

BATCH_SIZES = (1, 4, 16)
TOKENS = 96
# Half of them is the shortest answer, of which trees leave out the end.
MIN_TOKENS = 16
# So many prompts of the file are used: beyond, time grows and the choice hardly changes.
MAX_PROMPTS = 32
# What the tuner sets, and why the user may not.
OWN_ARGS = {
    "model": "it is --model",
    "speculative_config": "it is what is being tuned",
    "max_num_seqs": "it is the batch size",
    "enable_prefix_caching": "prompts are repeated, and must cost the same every time",
}

# Token ids.
Prompt = list[int]


@dataclass(frozen=True)
class Settings:
    """One run of the tuner.

    `chat`: the prompts are what users say, and the target's chat template goes around them.
    `engine_args`: further arguments of `vllm.LLM`; those of the server that is being tuned for.

    Raises ValueError for a value of the wrong type or range.
    """

    model: str
    head: str
    prompts: str
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    tokens: int = TOKENS
    temperature: float = 0.0
    chat: bool = False
    out: str = "tuned.json"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    sweep: bool = False

    def __post_init__(self) -> None:
        sizes, shown = self.batch_sizes, ",".join(map(str, self.batch_sizes))
        fine = sizes and min(sizes) >= 1 and len(set(sizes)) == len(sizes)
        why = "must be different whole numbers of 1 or more"
        _require(fine, "--batch-sizes", shown, why, "write --batch-sizes 1,4,16")
        fine, mend = self.tokens >= MIN_TOKENS, f"set it to {MIN_TOKENS} or more"
        _require(fine, "--tokens", self.tokens, "too few steps to measure", mend)
        fine, mend = 0 <= self.temperature <= 2, "set it to what your requests use, 0 for greedy"
        _require(fine, "--temperature", self.temperature, "must be between 0 and 2", mend)
        fine = self.out.endswith(".json")
        _require(fine, "--out", self.out, "must end in .json", "write --out tuned.json")
        for key in OWN_ARGS.keys() & self.engine_args.keys():
            why = f"is set by the tuner: {OWN_ARGS[key]}"
            _require(False, f"--engine-args {key}", self.engine_args[key], why, "remove it")

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> "Settings":
        """Of the command line; `--pair` fills in what comes along.

        Raises ValueError as the class does, and for a part that is missing; FileNotFoundError for a
        pair that is not there.
        """
        values = {one.name: getattr(arguments, one.name) for one in fields(cls)}
        try:
            values["batch_sizes"] = tuple(map(int, arguments.batch_sizes.split(",")))
        except ValueError:
            sizes, mend = arguments.batch_sizes, "write --batch-sizes 1,4,16"
            raise refusal("--batch-sizes", sizes, "must be whole numbers", mend) from None
        given = json_object("--engine-args", arguments.engine_args, '{"dtype": "bfloat16"}')
        values["engine_args"] = given
        if arguments.pair:
            found = pair.find(arguments.pair)
            if not values["prompts"]:
                values["chat"] = found.chat
            parts = {"model": found.target, "head": found.draft, "prompts": found.prompts}
            values |= {key: str(path) for key, path in parts.items() if not values[key]}
            values["engine_args"] = _PAIR_ARGS | given
        mend = f"give it, or --pair {' or '.join(pair.NAMES)}"
        for key in ("model", "head", "prompts"):
            _require(values[key], f"--{key}", values[key], "is needed", mend)
        return cls(**values)


# As `make demo` serves its pair; 256 MiB hold 16 of the longest prompts of both.
_PAIR_ARGS = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2**28}


def _require(holds: object, key: str, value: object, why: str, mend: str) -> None:
    if not holds:
        raise refusal(key, value, why, mend)


def encode(settings: Settings, room: int) -> tuple[list[Prompt], int]:
    """At most `MAX_PROMPTS` prompts from all over the file, and the context length they need.

    `room`: positions needed behind a prompt. With `max_model_len` among the engine's arguments,
    prompts that leave no such room are passed over.

    Raises ValueError where none leaves it, and for a chat without a template.
    """
    from transformers import AutoTokenizer

    args = settings.engine_args
    tokenizer = AutoTokenizer.from_pretrained(
        args.get("tokenizer") or settings.model,
        trust_remote_code=args.get("trust_remote_code", False),
    )
    conversations = Conversations(tokenizer, settings.chat, "--chat")
    texts = spread(read_texts(settings.prompts), MAX_PROMPTS, 0)
    prompts = [conversations.ids([text]) for text in texts]
    limit = args.get("max_model_len")
    if limit is not None:
        prompts = [prompt for prompt in prompts if len(prompt) + room <= limit]
        if not prompts:
            why = f"no prompt leaves room for the {room} positions behind it"
            mend = "raise it in --engine-args, or lower --tokens"
            raise refusal("max_model_len", limit, why, mend)
    return prompts, limit or -(-(max(map(len, prompts)) + room) // 64) * 64
