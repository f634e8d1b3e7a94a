# SPDX-License-Identifier: Apache-2.0
"""Heads that draft all levels at once, from masked rows (P-EAGLE): which ones do, and what a mask
is. vLLM's own parallel drafting stays off: it would make room for the masks of its chains."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

from vllm_eagle_pangu.compat.lent import lent
from vllm_eagle_pangu.config import TreeConfig, refusal

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm.config import VllmConfig
    from vllm.v1.spec_decode.eagle import EagleProposer

KEY = "parallel_drafting"
# What a checkpoint calls the hidden state of masked rows, before fc; and where config.json may name
# their token, in the order in which vLLM looks: speculators' (pard_token, as vLLM translates its
# config), and P-EAGLE's own.
MASK_HIDDEN = "mask_hidden"
_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
# Of vLLM's classes the one that reads the mask.
_HEAD_CLASS = "Eagle3LlamaForCausalLM"


def drafts_in_parallel(
    tree: TreeConfig, architectures: Sequence[str], shapes: dict[str, tuple[int, ...]]
) -> bool:
    """Whether the user says so, or the head's `architectures`, or its tensors' names."""
    named = any("peagle" in name.lower() for name in architectures)
    return bool(tree.parallel_drafting) or named or MASK_HIDDEN in shapes


def mask_token(head: "PretrainedConfig") -> int | None:
    """The token of masked rows; None where the config names none."""
    named = (getattr(head, key, None) for key in _TOKENS)
    return next((token for token in named if token is not None), None)


@contextmanager
def keeping_mask(proposer: "EagleProposer") -> Iterator[None]:
    """The head that vLLM loads inside keeps its mask: its model alone is told that it drafts in
    parallel, behind the last check of a configuration, which masks would ask for room."""
    config_of_head = proposer._create_draft_vllm_config
    said = proposer.vllm_config.speculative_config

    def told() -> "VllmConfig":
        config = config_of_head()
        said.parallel_drafting = True
        return config

    with lent(said, parallel_drafting=False), lent(proposer, _create_draft_vllm_config=told):
        yield


def check_parallel(
    tree: TreeConfig,
    head: "PretrainedConfig",
    head_class: str,
    shapes: dict[str, tuple[int, ...]],
    fc_input: int,
) -> None:
    """Refuse what is said of parallel drafting and the head cannot do, or does otherwise.

    `shapes` of the checkpoint's tensors, empty where it is not at hand yet; `fc_input`: sizes of
    all taps together. Raises ValueError.
    """
    said, shape = tree.parallel_drafting, shapes.get(MASK_HIDDEN)
    if not drafts_in_parallel(tree, head.architectures, shapes):
        return
    if said is False:
        problem = "the head was trained to draft all levels at once"
        raise refusal(KEY, said, problem, f'remove "{KEY}", or use another head')
    if shapes and shape is None:
        problem = "the checkpoint has none, and levels are drafted at once from it"
        raise refusal(MASK_HIDDEN, None, problem, f'use a P-EAGLE head, or remove "{KEY}"')
    if head_class != _HEAD_CLASS:
        problem = f"of vLLM's heads {_HEAD_CLASS} alone reads {MASK_HIDDEN}"
        raise refusal("architectures", head.architectures, problem, "use a head of Llama layers")
    token = mask_token(head)
    if not (isinstance(token, int) and 0 <= token < head.vocab_size):
        problem = f"masked rows need a token of the vocabulary of {head.vocab_size}"
        mend = "name the one that it was trained with in the head's config.json"
        raise refusal(_TOKENS[-1], token, problem, mend)
    if shape is not None and prod(shape) != fc_input:
        problem = f"hidden size and taps ask for {fc_input} numbers"
        raise refusal(MASK_HIDDEN, shape, problem, "export the head with the taps of its config")
