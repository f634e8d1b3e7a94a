# SPDX-License-Identifier: Apache-2.0
"""Whether a target can verify trees and a head fits it.

The checks are those of a server's start, so the same refusals speak.
"""

from collections.abc import Iterator

from vllm_eagle_pangu.config import METHOD
from vllm_eagle_pangu.doctor.finding import OK, WRONG, Finding, reason


def check(target: str, head: str) -> Iterator[Finding]:
    from vllm.engine.arg_utils import EngineArgs

    from vllm_eagle_pangu.engine.target_fit import check_target

    # Whatever vLLM raises here is what its server would end with.
    try:
        arguments = EngineArgs(model=target)
        model = arguments.create_model_config()
        check_target(model)
    except Exception as error:
        yield Finding("target", WRONG, reason(error))
        yield Finding("head", WRONG, "not checked: it takes a target that fits")
        return
    yield Finding("target", OK, f"{arguments.model} ({model.architectures[0]}) can verify trees")
    speculative = {"method": METHOD, "model": head}
    try:
        config = EngineArgs(model=target, speculative_config=speculative).create_engine_config()
    except Exception as error:
        yield Finding("head", WRONG, reason(error))
        return
    assert config.speculative_config is not None
    draft = config.speculative_config.draft_model_config
    yield Finding("head", OK, f"{draft.model} ({draft.architectures[0]}) fits it")
