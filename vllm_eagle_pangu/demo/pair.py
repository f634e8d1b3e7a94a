# SPDX-License-Identifier: Apache-2.0
"""The pairs that come along, by name: a target, its head, and held-out prompts."""

from dataclasses import dataclass
from pathlib import Path

from vllm_eagle_pangu.fetch import MODELS, fetch
from vllm_eagle_pangu.measure.prompts import INSTRUCTIONS, Conversations, read_texts, spread

# Enough to go on, and little beside the completion: the demo times decoding, not prefill.
MIN_CHARACTERS, MAX_CHARACTERS = 80, 800

DEMO = "demo"
NAMES = (DEMO, *MODELS)
_PACKAGE = Path(__file__).resolve().parent.parent
SHIPPED = _PACKAGE / "demo_pair"
HEADS = _PACKAGE / "heads"


@dataclass(frozen=True)
class Pair:
    """`chat`: the prompts are what a user says to it, and its answers end where it ends them."""

    target: Path
    draft: Path
    prompts: Path
    chat: bool = False

    def read_prompts(self, limit: int) -> list[str]:
        """`limit` prompts of moderate length that neither model saw, as the target is asked."""
        texts = read_texts(str(self.prompts))
        if not self.chat:
            return [text for text in texts if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS][:limit]
        from transformers import AutoTokenizer

        chat = Conversations(AutoTokenizer.from_pretrained(self.target), chat=True)
        chosen = spread([text for text in texts if len(text) <= MAX_CHARACTERS], limit)
        return [chat.text([text]) for text in chosen]


def find(name: str | None = None) -> Pair:
    """The pair of that name, None for the demo's, or a folder laid out like the demo's.

    Raises FileNotFoundError where a part is missing, or a published target cannot be fetched.
    """
    if name in MODELS:
        pair = Pair(fetch(name), HEADS / name, INSTRUCTIONS, chat=True)
    else:
        root = SHIPPED if name in (None, DEMO) else Path(str(name)).resolve()
        prompts = root / "heldout_prompts.jsonl"
        # A folder of checkpoints alone is run on the shipped prompts.
        if not prompts.exists():
            prompts = SHIPPED / prompts.name
        pair = Pair(root / "target", root / "draft", prompts)
    for needed in (pair.target / "config.json", pair.draft / "config.json", pair.prompts):
        if not needed.is_file():
            raise FileNotFoundError(
                f"no such pair: {needed} is missing. Say {' or '.join(NAMES)}, or name a folder "
                "that holds target/ and draft/"
            )
    return pair
