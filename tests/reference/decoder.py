# SPDX-License-Identifier: Apache-2.0
"""The oracle: plain and tree decoding of one sequence, slow and without vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vllm_eagle_pangu.core.shape import TreeShape

from .cache import CommittedCache
from .drafter import DraftRow, KeyValue, ReferenceDrafter
from .target import ReferenceTarget
from .tree import Tree, grow

# (logits [V] float32, position of the token to draw) -> token. Noise that depends on nothing but
# the position makes plain and tree decoding comparable token by token when sampling, too.
Sampler = Callable[[torch.Tensor, int], int]


@dataclass
class Step:
    """One decoding step.

    `start`: t, the committed tokens before the step; the root is at this position.
    `tree`: the drafted tree; `logits: [R, V] float32`: the target's, row by row.
    `path`: accepted rows, root included; `emitted`: their drawn tokens, the last is the bonus.
    """

    start: int
    tree: Tree
    logits: torch.Tensor
    path: list[int]
    emitted: list[int]


@dataclass
class Trace:
    """`tokens`: the n new tokens; `steps`: how all but the first of them came about.

    The last step may have emitted more than was asked for.
    """

    tokens: list[int]
    steps: list[Step] = field(default_factory=list)


class OracleDecoder:
    """Decodes a target folder, with trees from an EAGLE-3 head folder.

    `verify`: "mask" verifies a tree in one forward with an ancestor mask and commits by path
    index; "branches" decodes every root-to-leaf path in its own row of a replicated cache and
    commits by length. Both give the same trace.

    The end-of-sequence token ends nothing: exactly n tokens are decoded.

    Raises:
        ValueError: an unknown `verify`, or a folder that the oracle cannot read.
    """

    def __init__(
        self,
        target_folder: str | Path,
        head_folder: str | Path | None = None,
        verify: str = "mask",
    ) -> None:
        if verify not in ("mask", "branches"):
            raise ValueError(f"verify={verify!r}: use 'mask' or 'branches'")
        self._verify = self._verify_by_mask if verify == "mask" else self._verify_by_branches
        self.target = ReferenceTarget(target_folder)
        self.drafter: ReferenceDrafter | None = None
        if head_folder is not None:
            self.drafter = ReferenceDrafter(head_folder, self.target.embedding, self.target.output)
            taps = self.drafter.taps or self.target.taps
            self.target.taps = tuple(sorted(set(taps)))
        self.cache = CommittedCache()

    def plain(self, prompt_ids: list[int], n: int, sampler: Sampler | str = "greedy") -> list[int]:
        """n tokens, one target forward each."""
        draw = _sampler(sampler)
        cache = CommittedCache().branch(1)
        tokens = list(prompt_ids)
        unread = tokens
        while len(tokens) < len(prompt_ids) + n:
            start = len(tokens) - len(unread)
            positions = torch.arange(start, len(tokens))[None]
            logits, _ = self.target.forward(torch.tensor([unread]), positions, cache)
            unread = [draw(logits[0, -1], len(tokens))]
            tokens = tokens + unread
        return tokens[len(prompt_ids) :]

    @torch.no_grad()
    def tree(
        self,
        prompt_ids: list[int],
        n: int,
        shape: TreeShape,
        sampler: Sampler | str = "greedy",
    ) -> Trace:
        """n tokens, drafted as trees of `shape` (width, depth, nodes).

        Raises:
            ValueError: the decoder has no head.
        """
        if self.drafter is None:
            raise ValueError("head_folder=None: trees need an EAGLE-3 head; pass its folder")
        draw = _sampler(sampler)
        self.cache = CommittedCache()
        drafted: list[KeyValue] = []

        tokens = list(prompt_ids)
        logits, taps = self._read_prompt(tokens)
        root = draw(logits, len(tokens))
        draft = self._extend(drafted, [*tokens[1:], root], taps)
        trace = Trace([root])
        while len(trace.tokens) < n:
            tree = grow(self.drafter, root, draft, drafted, shape)
            start = self.cache.length
            logits, taps, commit = self._verify(tree)
            depths = zip(logits, tree.depth, strict=True)
            draws = [draw(row, start + depth + 1) for row, depth in depths]
            path = tree.accept(draws)
            commit(path)
            emitted = [draws[row] for row in path]
            root = emitted[-1]
            draft = self._extend(drafted, emitted, taps[path])
            trace.tokens += emitted
            trace.steps.append(Step(start, tree, logits, path, emitted))
        del trace.tokens[n:]
        return trace

    def _read_prompt(self, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Commit the prompt. Returns the last token's logits `[V]`, all tokens' taps."""
        cache = self.cache.branch(1)
        positions = torch.arange(len(tokens))[None]
        logits, taps = self.target.forward(torch.tensor([tokens]), positions, cache)
        self.cache.commit_length(cache, row=0, length=len(tokens))
        return logits[0, -1], taps[0]

    def _extend(self, drafted: list[KeyValue], tokens: list[int], taps: torch.Tensor) -> DraftRow:
        """Draft extend: tokens[i] follows the position whose target states are taps[i]."""
        assert self.drafter is not None
        for token, hidden in zip(tokens, self.drafter.combine(taps), strict=True):
            row = self.drafter.row(token, hidden, len(drafted), drafted)
            drafted.append(row.key_value)
        return row

    def _verify_by_mask(self, tree: Tree):
        """Logits `[R, V]`, taps `[R, taps*H]`, and what commits a path."""
        cache = self.cache.branch(1)
        positions = torch.tensor([tree.depth]) + self.cache.length
        tokens = torch.tensor([tree.tokens])
        logits, taps = self.target.forward(tokens, positions, cache, tree.visible())
        return logits[0], taps[0], lambda path: self.cache.commit_path(cache, path)

    def _verify_by_branches(self, tree: Tree):
        """As `_verify_by_mask`, without any mask."""
        start = self.cache.length
        paths = [tree.path_to(leaf) for leaf in tree.leaves()]
        longest = max(map(len, paths))
        # Paths are filled up at the end, where a causal row does not see it.
        tokens = torch.zeros(len(paths), longest, dtype=torch.int64)
        for branch, path in enumerate(paths):
            tokens[branch, : len(path)] = torch.tensor([tree.tokens[row] for row in path])
        positions = (torch.arange(longest) + start).expand(len(paths), -1)
        cache = self.cache.branch(len(paths))
        logits, taps = self.target.forward(tokens, positions, cache)

        branch_of = {row: branch for branch, path in enumerate(paths) for row in path}
        branches = [branch_of[row] for row in range(len(tree.tokens))]

        def commit(path: list[int]) -> None:
            self.cache.commit_length(cache, branch_of[path[-1]], start + len(path))

        return logits[branches, tree.depth], taps[branches, tree.depth], commit


def _sampler(sampler: Sampler | str) -> Sampler:
    if sampler == "greedy":
        return lambda logits, position: int(logits.argmax())
    if not callable(sampler):
        raise ValueError(f"sampler={sampler!r}: use 'greedy' or a callable (logits, position)")
    return sampler
