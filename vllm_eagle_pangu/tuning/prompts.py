# SPDX-License-Identifier: Apache-2.0
"""The user's prompts, as token ids."""

import json
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.tuning.settings import Settings

Prompt = list[int]
T = TypeVar("T")

# So many of the file are used: beyond, time grows and the choice hardly changes.
MAX_PROMPTS = 32


def read_prompts(path: str) -> list[str]:
    """The prompts of a file with one `{"prompt": str}` per line; further keys are passed over.

    Raises ValueError for a file that cannot be read, is empty, or has a line of another form.
    """
    mend = 'write one {"prompt": "..."} per line'
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise refusal("--prompts", path, f"cannot be read ({error})", mend) from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise refusal("--prompts", path, f"line {number} holds no prompt", mend)
        prompts.append(prompt)
    if not prompts:
        raise refusal("--prompts", path, "holds no prompt", mend)
    return prompts


def encode(settings: Settings, room: int) -> tuple[list[Prompt], int]:
    """At most `MAX_PROMPTS` prompts from all over the file, and the context length they need.

    `room`: positions needed behind a prompt. With `max_model_len` among the engine's arguments,
    prompts that leave no such room are passed over, and ValueError is raised if none does.
    """
    from transformers import AutoTokenizer

    args: dict[str, Any] = dict(settings.engine_args)
    tokenizer = AutoTokenizer.from_pretrained(
        args.get("tokenizer") or settings.model,
        trust_remote_code=args.get("trust_remote_code", False),
    )
    texts = spread(read_prompts(settings.prompts), MAX_PROMPTS)
    prompts = [list(tokenizer(text)["input_ids"]) for text in texts]
    limit = args.get("max_model_len")
    if limit is not None:
        prompts = [prompt for prompt in prompts if len(prompt) + room <= limit]
        if not prompts:
            raise refusal(
                "max_model_len",
                limit,
                f"no prompt leaves room for the {room} positions behind it",
                "raise it in --engine-args, or lower --tokens",
            )
    return prompts, limit or -(-(max(map(len, prompts)) + room) // 64) * 64


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` items at even distances, all of them if there are no more."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def pieces(prompts: Sequence[Prompt], size: int, count: int) -> list[list[Prompt]]:
    """`count` lists of `size` prompts each, from the start again where they run out."""
    endless = cycle(prompts)
    return [list(islice(endless, size)) for _ in range(count)]
