# SPDX-License-Identifier: Apache-2.0
"""Whether a target can verify trees and a head fits it.

The checks are those of a server's start, so the same refusals speak.
"""

from collections.abc import Callable, Iterator
from typing import Any

from vllm_eagle_pangu.config import METHOD
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding, reason


def check(target: str, head: str) -> Iterator[Finding]:
    from vllm.engine.arg_utils import EngineArgs

    found = _checked("target", lambda: _check_target(EngineArgs(model=target)))
    yield found
    if found.state != OK:
        yield Finding("head", WRONG, "not checked: it takes a target that fits")
        return
    speculative = {"method": METHOD, "model": head}
    arguments = EngineArgs(model=target, speculative_config=speculative)
    yield _checked("head", lambda: _check_head(arguments))


def _checked(name: str, check: Callable[[], str]) -> Finding:
    # Whatever vLLM raises here is what its server would end with.
    try:
        return Finding(name, OK, check())
    except Exception as error:
        return Finding(name, WRONG, reason(error))


def _check_target(arguments: Any) -> str:
    from vllm_eagle_pangu.engine.target_fit import check_target

    model = arguments.create_model_config()
    check_target(model)
    return f"{arguments.model} ({model.architectures[0]}) can verify trees"


def _check_head(arguments: Any) -> str:
    config = arguments.create_engine_config()
    draft = config.speculative_config.draft_model_config
    return f"{draft.model} ({draft.architectures[0]}) fits it"
