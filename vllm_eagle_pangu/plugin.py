# SPDX-License-Identifier: Apache-2.0
"""The `vllm.general_plugins` entry point."""


def register() -> None:
    """Make the method known to vLLM, and the models and configs that come with it.

    vLLM calls this in every process, several times, before any configuration exists: it is
    re-entrant, prints nothing, and changes nothing for users who do not choose the method.
    """
    from vllm_eagle_pangu import compat
    from vllm_eagle_pangu.models.registration import register_models

    compat.install()
    register_models()
