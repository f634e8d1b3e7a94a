# SPDX-License-Identifier: Apache-2.0
"""On a vLLM that we do not support, the method is refused by version and nothing else changes."""

import pytest
import vllm
from vllm.engine.arg_utils import EngineArgs

from vllm_eagle_pangu import compat, plugin


@pytest.fixture(params=["0.31.2", "0.33.0", "1.0.0", "dev"])
def foreign_vllm(request, monkeypatch, engine_args):
    """The installed vLLM under another version, with the plugin registered on it afresh."""
    engine_args()
    for name in ("create_engine_config", "create_speculative_config"):
        monkeypatch.setattr(EngineArgs, name, getattr(EngineArgs, name).__wrapped__)
    monkeypatch.setattr(vllm, "__version__", request.param)
    plugin.register()
    return request.param


def test_the_method_is_refused_by_version(foreign_vllm, engine_args, refused):
    message = refused(engine_args())
    assert f"method='eagle_pangu': vLLM {foreign_vllm} is not supported" in message
    assert "install vLLM 0.23.* or 0.32.*" in message


def test_other_methods_still_work(foreign_vllm, engine_args):
    spec = {"method": "eagle3", "num_speculative_tokens": 2}
    assert engine_args(spec).create_engine_config().num_speculative_tokens == 2


def test_there_is_no_attention_backend_for_it(foreign_vllm):
    with pytest.raises(ValueError, match=rf"vLLM {foreign_vllm} is not supported; install"):
        compat.install_attention_backend()
