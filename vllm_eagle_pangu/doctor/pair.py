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

    checked = "target"
    # Whatever vLLM raises here is what its server would end with.
    try:
        model = EngineArgs(model=target).create_model_config()
        check_target(model)
        yield Finding("target", OK, f"{model.model} ({model.architectures[0]}) can verify trees")
        checked, speculative = "head", {"method": METHOD, "model": head}
        config = EngineArgs(model=target, speculative_config=speculative).create_engine_config()
        assert config.speculative_config is not None
        draft = config.speculative_config.draft_model_config
        yield Finding("head", OK, f"{draft.model} ({draft.architectures[0]}) fits it")
    except Exception as error:
        yield Finding(checked, WRONG, reason(error))
        if checked == "target":
            yield Finding("head", WRONG, "not checked: it takes a target that fits")
