# SPDX-License-Identifier: Apache-2.0
"""The twin catches each class of violation: probe/ has one small wrong kernel for each."""

from pathlib import Path

import pytest
import torch

from .twin import Argument, TwinViolationError, compile_kernel
from .twin.launch import Role

SIZE = 8

FAULTS = {
    "store_past_the_end": (1, "bytes 0 to 64 of a GlobalTensor in target that has 56"),
    "load_past_the_end": (2, "bytes 0 to 64 of a GlobalTensor in source that has 56"),
    "global_buffer_too_large": (3, "SetGlobalBuffer: 72 bytes .* of source, which has 64"),
    "store_into_an_input": (4, "stores into the input source"),
    "output_left_unstored": (5, "target: byte 56 was not stored"),
    "scalar_store_to_global": (6, "SetValue: target: .*data cache"),
    "output_read": (7, "reads the output target"),
    "raw_pointer_past_the_end": (8, "target: a raw pointer wrote outside"),
    "raw_pointer_into_an_input": (9, "source: a raw pointer wrote into the input"),
    "byte_stored_twice": (10, "byte 0 of target is stored twice by core 0"),
    "global_scalar_past_the_end": (11, "GetValue: element 8 of 8 of source"),
    "local_read_past_the_end": (30, "GetValue: element 8 of 8"),
    "local_write_past_the_end": (31, "SetValue: element 8 of 8"),
    "local_never_written": (32, "GetValue reads local byte 0 that was never written"),
    "local_address_unaligned": (33, "local address 8 is not aligned to 32"),
    "copy_of_no_whole_block": (34, "DataCopy: 24 bytes are not 1 to 65535 blocks"),
    "copy_past_the_local_end": (35, "bytes 0 to 64 of a LocalTensor that has 32"),
    "unified_buffer_exceeded": (36, "InitBuffer: 196608 bytes .* of 196608 are taken"),
    "too_many_blocks": (37, "blockCount 4096"),
    "block_of_no_whole_element": (38, "blockLen 9 is not whole elements of 8"),
    "block_too_long": (39, "blockLen 2097152"),
    "padding_of_a_copy_read": (40, "local byte 8 that was never written"),
    "too_many_buffers": (43, "InitBuffer: more than 64 buffers"),
    "buffer_not_initialised": (41, "TBuf::Get before InitBuffer"),
    "store_of_nothing_written": (42, "DataCopyPad reads local byte 64 that was never written"),
    "scalar_read_after_load": (50, "scalar reads local byte 0 that MTE2 writes"),
    "store_after_scalar_write": (51, "MTE3 reads local byte 0 that scalar writes"),
    "store_after_load": (52, "MTE3 reads local byte 0 that MTE2 writes"),
    "scalar_write_after_store": (53, "scalar writes local byte 0 that MTE3 reads"),
    "load_after_store": (54, "MTE2 writes local byte 0 that MTE3 reads"),
    "load_after_load": (55, "MTE2 writes local byte 0 that MTE2 writes"),
    "load_after_scalar_write": (56, "MTE2 writes local byte 0 that scalar writes"),
    "wait_without_set": (57, "WaitFlag: MTE2 to scalar, id 0 was not set"),
    "flag_left_set": (58, "ends with the flag MTE3 to scalar, id 0 set"),
    "set_twice": (59, "SetFlag: MTE2 to scalar, id 1 is set already"),
    "event_id_out_of_range": (60, "event id 8"),
    "flag_to_another_pipe": (61, "scalar reads local byte 0 that MTE2 writes"),
    "barrier_of_another_pipe": (62, "scalar reads local byte 0 that MTE2 writes"),
    "queue_skipped": (70, "MTE3 reads local byte .* that MTE2 writes"),
    "used_before_deque": (71, "waits in its queue: DeQue it"),
    "used_after_free": (72, "the queue tensor was freed"),
    "freed_twice": (73, "the queue tensor was freed"),
    "deque_of_nothing": (74, "DeQue: the queue is empty"),
    "never_freed": (75, "ends with a queue tensor that was not freed"),
    "too_many_tensors": (76, "all 2 tensors of the queue are in use"),
    "enqueued_twice": (77, "EnQue: not a tensor of AllocTensor"),
    "allocated_and_forgotten": (78, "ends with a queue tensor that was not freed"),
    "deeper_than_the_queue": (79, "EnQue: more than depth 1"),
    "another_buffers_tensor": (80, "EnQue: the tensor is not this queue's"),
}


def launch(fault: int, cores: int = 1, order: tuple[int, ...] | None = None) -> torch.Tensor:
    kernel = compile_kernel("probe", folder=Path(__file__).parent / "probe")
    source, target = torch.arange(SIZE), torch.full((SIZE,), -1)
    arguments = [Argument("source", source), Argument("target", target, Role.OUTPUT)]
    try:
        kernel.launch(
            arguments, kernel.tiling({"cores": cores, "fault": fault, "size": SIZE}), order
        )
    except TwinViolationError:
        assert target.tolist() == [-1] * SIZE
        raise
    finally:
        assert source.tolist() == list(range(SIZE))
    return target


def test_a_right_kernel_passes():
    assert launch(0).tolist() == list(range(SIZE))


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_caught(name):
    fault, message = FAULTS[name]
    with pytest.raises(TwinViolationError, match=message):
        launch(fault)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_cores_on_one_byte_are_caught_in_either_order(order):
    with pytest.raises(TwinViolationError, match="byte 24 of target is stored by the cores"):
        launch(20, 2, order)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_cores_in_one_block_are_caught_in_either_order(order):
    with pytest.raises(TwinViolationError, match="block at byte 32 of target is shared"):
        launch(21, 2, order)


def test_two_cores_on_their_own_blocks_pass():
    assert launch(22, 2).tolist() == [1] * SIZE


def test_a_violation_does_not_spoil_the_next_launch():
    for _ in range(3):
        with pytest.raises(TwinViolationError):
            launch(71)
        assert launch(0).tolist() == list(range(SIZE))


def test_kernel_that_does_not_compile_is_refused_with_the_compilers_words():
    with pytest.raises(RuntimeError, match=r"(?s)g\+\+ refused tree_accept.*nonsense"):
        compile_kernel("tree_accept", source="nonsense;")
