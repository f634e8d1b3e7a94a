# SPDX-License-Identifier: Apache-2.0
"""How long a request the head drafts for: its own positions, or as many as the user asks for."""

import logging
from typing import TYPE_CHECKING

from vllm_eagle_pangu.config import refusal

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm.config import SpeculativeConfig, VllmConfig

logger = logging.getLogger(__name__)

# Their frequencies are the same for any number of positions, so the rotary cache may be longer.
_OPEN_ROPES = ("default", "linear", "llama3")
_KEY = "max_model_len"


def set_length(config: "SpeculativeConfig", wanted: object) -> None:
    """Let the head draft for requests of up to `wanted` tokens; None leaves it at its own length.

    `config` is vLLM's SpeculativeConfig, built without a length. vLLM itself lets a user only
    lower it. Raises ValueError for what the target or the head's rope does not reach.
    """
    if wanted is None:
        return
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise refusal(_KEY, wanted, "must be a whole number of tokens", f'write "{_KEY}": 4096')
    draft, head = config.draft_model_config, config.draft_model_config.hf_config
    rope = _closed_rope(head)
    most = config.target_model_config.max_model_len
    problem = f"the target's max_model_len is {most}"
    if rope is not None and draft.max_model_len < most:
        most = draft.max_model_len
        problem = (
            f"the head has {most} positions, and its rope_type={rope!r} computes others for more"
        )
    if wanted > most:
        mend = f'set "{_KEY}" in speculative_config to {most} or less'
        raise refusal(_KEY, wanted, problem, mend)
    if wanted > draft.max_model_len:
        head.max_position_embeddings = max(head.max_position_embeddings, wanted)
    config.max_model_len = draft.max_model_len = wanted


def warn_of_short_head(vllm_config: "VllmConfig") -> None:
    """Say at start-up that requests longer than the head's positions go without drafts."""
    draft = vllm_config.speculative_config.draft_model_config
    target_length = vllm_config.model_config.max_model_len
    if draft.max_model_len >= target_length:
        return
    mend = "use a head for longer contexts"
    if _closed_rope(draft.hf_config) is None:
        mend = f'set "{_KEY}": {target_length} in speculative_config'
    logger.warning(
        "eagle_pangu: the head drafts up to max_model_len=%d and the target decodes up to "
        "max_model_len=%d: longer requests go on without drafts; %s",
        draft.max_model_len,
        target_length,
        mend,
    )


def _closed_rope(head: "PretrainedConfig") -> str | None:
    """The head's kind of rotary embedding if it depends on how many positions there are."""
    rope = getattr(head, "rope_parameters", None) or getattr(head, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    return None if kind in _OPEN_ROPES else kind
