# SPDX-License-Identifier: Apache-2.0
"""A seam that is renamed in a copy of vllm-ascend is named by the table's test, and no other is."""

import shutil
from pathlib import Path

import pytest

from vllm_eagle_pangu.compat import source_seam
from vllm_eagle_pangu.compat.ascend_seams import ASCEND_SEAMS

RUNNER = "worker/model_runner_v1.py"
ATTENTION = "attention/attention_v1.py"
PROPOSER = "spec_decode/llm_base_proposer.py"

# A file, what is renamed in it and to what, and how the entries begin that then fail.
MUTATIONS = {
    "a method of the runner": (
        RUNNER,
        ("def _get_drafter(", "def _make_drafter("),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner._get_drafter TAKES"],
    ),
    "a parameter given by position": (
        RUNNER,
        ("aux_hidden_states: torch.Tensor = None", "aux_states: torch.Tensor = None"),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner.propose_draft_token_ids TAKES"],
    ),
    "the order of two parameters": (
        RUNNER,
        (
            "def _sample(self, logits, spec_decode_metadata)",
            "def _sample(self, spec_decode_metadata, logits)",
        ),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner._sample TAKES"],
    ),
    "how many values are returned": (
        RUNNER,
        (
            "return attn_metadata, spec_decode_common_attn_metadata\n",
            "return attn_metadata, spec_decode_common_attn_metadata, None\n",
        ),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner._build_attention_metadata GIVES"],
    ),
    "a call": (
        RUNNER,
        ("            update_cos_sin(positions)", "            set_positions(positions)"),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner.execute_model USES update_cos_sin"],
    ),
    "an attribute of the runner": (
        RUNNER,
        ("self.model_memory_usage =", "self.weights_memory ="),
        ["vllm_ascend.worker.model_runner_v1.NPUModelRunner.model_memory_usage"],
    ),
    "an attribute of the batch": (
        "worker/npu_input_batch.py",
        ("self.num_tokens_no_spec =", "self.num_tokens_plain ="),
        ["vllm_ascend.worker.npu_input_batch.NPUInputBatch.num_tokens_no_spec"],
    ),
    "an attribute of the block table": (
        "worker/block_table.py",
        ("self.slot_mapping = ", "self.slots = "),
        ["vllm_ascend.worker.block_table.BlockTable.slot_mapping"],
    ),
    "the runner's name in the worker": (
        "worker/worker.py",
        (
            "self.model_runner = NPUModelRunner(self.vllm_config",
            "self.model_runner = NPURunner(self.vllm_config",
        ),
        ["vllm_ascend.worker.worker.NPUWorker.init_device USES NPUModelRunner"],
    ),
    "the backend that the platform names": (
        "platform.py",
        (
            "vllm_ascend.attention.attention_v1.AscendAttentionBackend",
            "vllm_ascend.attention.attention_v2.AscendAttentionBackend",
        ),
        ["vllm_ascend.platform.NPUPlatform.get_attn_backend_cls USES"],
    ),
    "the worker that the platform names": (
        "platform.py",
        ("vllm_ascend.worker.worker.NPUWorker", "vllm_ascend.worker.npu.NPUWorker"),
        ["vllm_ascend.platform.NPUPlatform.check_and_update_config USES vllm_ascend.worker"],
    ),
    "a class": (
        ATTENTION,
        ("class AscendAttentionBackendImpl(", "class AscendAttentionImpl("),
        [
            "vllm_ascend.attention.attention_v1.AscendAttentionBackendImpl",
            "vllm_ascend.attention.attention_v1.AscendAttentionBackendImpl.",
        ],
    ),
    "what the metadata builder counts by": (
        ATTENTION,
        ("self.decode_threshold", "self.rows_of_a_decode"),
        ["vllm_ascend.attention.attention_v1.AscendAttentionMetadataBuilder.decode_threshold"],
    ),
    "a field of the metadata": (
        ATTENTION,
        ("    slot_mapping: torch.Tensor = None", "    slots: torch.Tensor = None"),
        ["vllm_ascend.attention.attention_v1.AscendMetadata.slot_mapping"],
    ),
    "a member of an enumeration": (
        ATTENTION,
        ("    ChunkedPrefill = 3", "    Chunked = 3"),
        ["vllm_ascend.attention.attention_v1.AscendAttentionState.ChunkedPrefill"],
    ),
    "a parameter of the forward context": (
        "ascend_forward_context.py",
        ("is_draft_model", "is_drafter"),
        ["vllm_ascend.ascend_forward_context.set_ascend_forward_context USES is_draft_model"],
    ),
    "how many passes the proposer's dummy run makes": (
        PROPOSER,
        ("self.num_speculative_tokens", "self.chain_length"),
        [f"vllm_ascend.spec_decode.llm_base_proposer.AscendSpecDecodeBaseProposer.{method} USES"
         for method in ("dummy_run", "_run_merged_draft")],
    ),
    "an option that is refused": (
        "ascend_config.py",
        ("self.enable_reduce_sample", "self.reduce_sample"),
        ["vllm_ascend.ascend_config.AscendConfig.enable_reduce_sample"],
    ),
    "a device": (
        "utils.py",
        ("    A3 = 1", "    ATLAS_A3 = 1"),
        ["vllm_ascend.utils.AscendDeviceType.A3"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def original() -> Path:
    folder = source_seam._folder("vllm_ascend")
    assert folder is not None
    return folder


@pytest.mark.parametrize("file, renamed, failing", MUTATIONS.values(), ids=MUTATIONS)
def test_what_is_renamed_is_named(tmp_path, monkeypatch, original, file, renamed, failing):
    copy = tmp_path / "vllm_ascend"
    shutil.copytree(original, copy, ignore=others)
    source = (copy / file).read_text()
    assert renamed[0] in source, "the mutation changes nothing"
    (copy / file).write_text(source.replace(*renamed))
    monkeypatch.setattr(source_seam, "_folder", lambda package: copy)
    source_seam._source.cache_clear()
    found = [str(seam) for seam in ASCEND_SEAMS if seam.problem() is not None]
    source_seam._source.cache_clear()
    for name in failing:
        assert any(each.startswith(name) for each in found), (name, found)
    assert all(each.startswith(tuple(failing)) for each in found), found


def others(folder: str, names: list[str]) -> set[str]:
    """What is no Python file and no folder."""
    return {n for n in names if not n.endswith(".py") and not Path(folder, n).is_dir()}
