# SPDX-License-Identifier: Apache-2.0
"""The user's prompts, as token ids."""

from typing import Any

from vllm_eagle_pangu.config import refusal
from vllm_eagle_pangu.measure.prompts import Conversations, read_texts, spread
from vllm_eagle_pangu.measure.prompts import Prompt as Asked
from vllm_eagle_pangu.tuning.settings import Settings

Prompt = list[int]

# So many of the file are used: beyond, time grows and the choice hardly changes.
MAX_PROMPTS = 32


def encode(settings: Settings, room: int) -> tuple[list[Prompt], int]:
    """At most `MAX_PROMPTS` prompts from all over the file, and the context length they need.

    `room`: positions needed behind a prompt. With `max_model_len` among the engine's arguments,
    prompts that leave no such room are passed over.

    Raises ValueError where none leaves it, and for a chat without a template.
    """
    from transformers import AutoTokenizer

    args: dict[str, Any] = dict(settings.engine_args)
    tokenizer = AutoTokenizer.from_pretrained(
        args.get("tokenizer") or settings.model,
        trust_remote_code=args.get("trust_remote_code", False),
    )
    if settings.chat and not tokenizer.chat_template:
        why = "the target's tokenizer has no chat template"
        raise refusal("--chat", True, why, "leave it out")
    conversations = Conversations(tokenizer, settings.chat)
    texts = spread(read_texts(settings.prompts), MAX_PROMPTS, 0)
    prompts = [conversations.ids(Asked("", index, (text,))) for index, text in enumerate(texts)]
    limit = args.get("max_model_len")
    if limit is not None:
        prompts = [prompt for prompt in prompts if len(prompt) + room <= limit]
        if not prompts:
            why = f"no prompt leaves room for the {room} positions behind it"
            mend = "raise it in --engine-args, or lower --tokens"
            raise refusal("max_model_len", limit, why, mend)
    return prompts, limit or -(-(max(map(len, prompts)) + room) // 64) * 64
