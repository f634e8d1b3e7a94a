# SPDX-License-Identifier: Apache-2.0
"""Dynamic EAGLE-3 tree speculative decoding for vLLM."""

__version__ = "0.1.0"
