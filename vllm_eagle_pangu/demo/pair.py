# SPDX-License-Identifier: Apache-2.0
"""Where the demo's two checkpoints and its held-out prompts are."""

from dataclasses import dataclass
from pathlib import Path

from vllm_eagle_pangu.measure.prompts import read_texts

# Enough to go on, and little beside the completion: the demo times decoding, not prefill.
MIN_CHARACTERS, MAX_CHARACTERS = 80, 800

SHIPPED = Path(__file__).resolve().parent.parent / "demo_pair"


@dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path
    prompts: Path

    def read_prompts(self, limit: int) -> list[str]:
        """The first `limit` prompts of moderate length, from files that the target never saw."""
        texts = read_texts(str(self.prompts))
        return [text for text in texts if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS][:limit]


def find(folder: str | None = None) -> Pair:
    """The shipped pair, or another folder laid out like it.

    Raises:
        FileNotFoundError: a part is missing; names it.
    """
    root = SHIPPED if folder is None else Path(folder).resolve()
    prompts = root / "heldout_prompts.jsonl"
    # A folder of checkpoints alone is run on the shipped prompts.
    if folder is not None and not prompts.exists():
        prompts = SHIPPED / prompts.name
    pair = Pair(root / "target", root / "draft", prompts)
    for needed in (pair.target / "config.json", pair.draft / "config.json", pair.prompts):
        if not needed.is_file():
            raise FileNotFoundError(
                f"no demo pair: {needed} is missing. Install the package with its demo_pair "
                "folder, or name a folder that holds target/ and draft/ with --pair"
            )
    return pair
