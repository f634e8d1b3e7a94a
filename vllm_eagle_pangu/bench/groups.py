# SPDX-License-Identifier: Apache-2.0
"""Groups: methods that are measured on the same prompts in one interleaving, plain among them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from vllm_eagle_pangu.bench.records import Key
from vllm_eagle_pangu.measure.method import PLAIN, Method
from vllm_eagle_pangu.measure.prompts import Prompt
from vllm_eagle_pangu.measure.turns import turns

# Neighbours in time are compared, and an engine's first answer after another's pays for the caches.
PROMPTS_PER_BLOCK = 4


@dataclass(frozen=True)
class Group:
    """What is measured together; `name` tells an experiment's groups apart, and their parts."""

    experiment: str
    name: str
    methods: tuple[Method, ...]
    prompts: tuple[Prompt, ...]
    temperature: float = 0.0
    forward_times: bool = False
    """Also time the target's forward by itself."""
    traced: bool = False

    def key(self, method: Method, prompt: Prompt, turn: int, repeat: int) -> Key:
        """Of the record of one answer."""
        place = self.experiment, self.name, method.name, float(self.temperature)
        return Key(*place, prompt.id, turn, repeat)

    def keys(self, repeats: int) -> Iterator[Key]:
        """Of the records of all answers."""
        for repeat, prompt, method in product(range(repeats), self.prompts, self.methods):
            for turn in range(len(prompt.turns)):
                yield self.key(method, prompt, turn, repeat)

    def cut(self, engines: int) -> "list[Group]":
        """Parts of at most `engines` methods, each with its own plain decoding to compare with."""
        if len(self.methods) <= engines:
            return [self]
        others = np.array([method for method in self.methods if method != PLAIN])
        # As even as can be: no part of a single method beside plain.
        parts = np.array_split(others, math.ceil(len(others) / (engines - 1)))
        return [
            replace(self, name=f"{self.name}-{number}", methods=(PLAIN, *part))
            for number, part in enumerate(parts, start=1)
        ]


def rounds(group: Group, repeats: int) -> Iterator[tuple[int, Method, tuple[Prompt, ...]]]:
    """(repeat, method, block of prompts) in the order of measuring."""
    size = PROMPTS_PER_BLOCK
    blocks = [group.prompts[start : start + size] for start in range(0, len(group.prompts), size)]
    for repeat, block, order in turns(group.methods, blocks, repeats):
        for method in order:
            yield repeat, method, block
