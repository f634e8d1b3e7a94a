# SPDX-License-Identifier: Apache-2.0
"""Tensor ops of a step, one folder each: `reference.py` defines the op, `cases.py` its inputs.

Tensors in, tensors out: nothing here imports the rest of the package.
"""
