# SPDX-License-Identifier: Apache-2.0
"""The engine on vllm-ascend 0.23: its classes with the tree step. Never run on an NPU yet.

Imported only where vLLM's platform is the NPU, by the paths in `compat/ascend.py`.
"""
