# SPDX-License-Identifier: Apache-2.0
"""What bench, tuner, demo and benchmarks/ measure with: methods, prompts, engines, closed loops."""
