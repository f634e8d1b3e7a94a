# SPDX-License-Identifier: Apache-2.0
import pytest

from vllm_eagle_pangu.core.policy import FixedShape
from vllm_eagle_pangu.core.request import RequestView
from vllm_eagle_pangu.core.shape import TreeShape


def test_capacity_counts_first_level_once_and_squares_after():
    shape = TreeShape(width=3, depth=4, nodes=10)
    assert (shape.capacity, shape.rows) == (3 + 3 * 9, 11)


def test_chain_is_one_node_per_level():
    shape = TreeShape(1, 7, 7)
    assert shape.capacity == shape.nodes == shape.depth == 7


@pytest.mark.parametrize("size", [(2, 2, 7), (2, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_impossible_shapes_are_refused(size):
    with pytest.raises(AssertionError):
        TreeShape(*size)


def test_the_fixed_policy_gives_every_request_its_shape():
    shape = TreeShape(4, 4, 12)
    requests = [RequestView(str(i), 10 * i, 12 * i, 8, False, True) for i in range(3)]
    assert FixedShape(shape).plan(requests) == [shape] * 3
