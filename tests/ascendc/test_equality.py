# SPDX-License-Identifier: Apache-2.0
"""The four AscendC ops on the twin equal their references, on any cores in any order."""

import copy

import pytest

from .checks import CORES, OPS, ORDERS, kernel_of

RANDOM_CASES = 500


@pytest.mark.parametrize("op", OPS)
def test_every_case_on_every_core_count_and_order_equals_the_reference(op):
    checked = OPS[op]
    for name, inputs in checked.case_inputs():
        for cores in CORES:
            for order in ORDERS:
                try:
                    checked.verify(kernel_of(op), copy.deepcopy(inputs), cores, order)
                except Exception as error:
                    raise AssertionError(f"{name} on {cores} cores, {order.__name__}") from error


@pytest.mark.parametrize("op", OPS)
def test_random_inputs_equal_the_reference(op):
    checked = OPS[op]
    for seed in range(RANDOM_CASES):
        cores, order = CORES[seed % len(CORES)], ORDERS[seed // len(CORES) % len(ORDERS)]
        try:
            checked.verify(kernel_of(op), checked.random_inputs(seed), cores, order)
        except Exception as error:
            raise AssertionError(f"seed {seed} on {cores} cores, {order.__name__}") from error
