"""A device that is the CPU, but as strict as a GPU: what a step does to a device, without one.

A `DeviceTensor` claims to lie on another device and keeps its numbers on the CPU. Inside
`strict()`, an operator on it raises `HostSyncError` where a GPU would make the host wait, and
`MixedDevicesError` where a GPU would refuse a CPU tensor beside it. Outside, it computes as usual.
Copies to it must start in pinned memory and not block: `PageableCopyError`. Pinned is what came
out of `pin_memory()` under the `PretendDevice`, and every view of it.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# A device type that torch knows without a driver; its tensors never hold numbers themselves.
DEVICE = torch.device("meta")

_aten = torch.ops.aten
# What copies numbers to the host, or needs them to know the size of its result.
_SYNCS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten._unique2.default,
    _aten.repeat_interleave.Tensor,
}
_INDEXING = {
    _aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default,
    _aten._index_put_impl_.default,
}  # fmt: skip
_COPIES = {_aten._to_copy.default, _aten.copy_.default}


class HostSyncError(AssertionError):
    """The host would wait for the device."""


class PageableCopyError(HostSyncError):
    """A copy to the device would wait for what was launched before it."""


class MixedDevicesError(AssertionError):
    """An operator got tensors of both devices."""


class _State:
    strict = False
    # Memory that was pinned, by address; kept, so that no other memory takes the address.
    pinned: ClassVar[dict[int, torch.Tensor]] = {}


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.clone()
    _State.pinned[pinned.untyped_storage().data_ptr()] = pinned
    return pinned


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _State.pinned


class DeviceTensor(torch.Tensor):
    """A tensor that claims to lie on `DEVICE`."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "DeviceTensor":
        assert not isinstance(held, DeviceTensor)
        self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=DEVICE,
        )  # fmt: skip
        self.held = held
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    def tolist(self) -> list:
        if _State.strict:
            raise HostSyncError("tolist() waits for the device")
        return self.held.tolist()


class PretendDevice(TorchDispatchMode):
    """Makes factories honour `DEVICE`; active while an engine with device tensors runs."""

    def __enter__(self) -> "PretendDevice":
        # vLLM's CPU runner makes it a no-op, for want of a device.
        self._pin_memory, torch.Tensor.pin_memory = torch.Tensor.pin_memory, _pin
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.Tensor.pin_memory = self._pin_memory
        _State.pinned.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    if func is _aten.is_pinned.default:
        return _is_pinned(args[0])
    flat, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    on_device = any(isinstance(tensor, DeviceTensor) for tensor in tensors)
    target = kwargs.get("device")
    to_device = target is not None and torch.device(target) == DEVICE
    if _State.strict:
        _check_copy(func, args, kwargs, to_device)
        _check(func, args, tensors, on_device, target)
    if to_device:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*to_host(args), **to_host(kwargs))
    leaves_device = func is _aten._to_copy.default and target is not None and not to_device
    if not (on_device or to_device) or leaves_device:
        return result
    return tree_map(lambda leaf: _wrapped(leaf, tensors), result)


def _check_copy(func: Any, args: tuple, kwargs: dict, to_device: bool) -> None:
    if func is _aten._to_copy.default and to_device:
        source, non_blocking = args[0], kwargs.get("non_blocking", False)
    elif func is _aten.copy_.default and isinstance(args[0], DeviceTensor):
        source, non_blocking = args[1], (*args, False)[2] or kwargs.get("non_blocking", False)
    else:
        return
    if isinstance(source, DeviceTensor) or (non_blocking and _is_pinned(source)):
        return
    raise PageableCopyError(
        f"{func} of shape {tuple(source.shape)} to the device waits for it: "
        + ("it blocks" if _is_pinned(source) else "the memory is not pinned")
    )


def _check(func: Any, args: tuple, tensors: list, on_device: bool, target: Any) -> None:
    if not on_device:
        return
    leaves = func is _aten._to_copy.default and target is not None and target != DEVICE
    to_host_copy = func is _aten.copy_.default and not isinstance(args[0], DeviceTensor)
    if func in _SYNCS or leaves or to_host_copy:
        raise HostSyncError(f"{func} waits for the device")
    if func in _INDEXING and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    ):
        raise HostSyncError(f"{func} with a mask counts on the host")
    if func in _COPIES:
        return
    for tensor in tensors:
        if isinstance(tensor, DeviceTensor):
            continue
        if tensor.device == DEVICE:
            raise PageableCopyError(f"{func} got a tensor that was made of host numbers")
        if tensor.dim() > 0:
            raise MixedDevicesError(f"{func} got a CPU tensor of shape {tuple(tensor.shape)}")


def _wrapped(leaf: Any, arguments: list[torch.Tensor]) -> Any:
    """The argument that an in-place operator returned, or its new result as a device tensor."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, DeviceTensor):
        return leaf
    for argument in arguments:
        if isinstance(argument, DeviceTensor) and argument.held is leaf:
            return argument
    return DeviceTensor(leaf)


def to_host(value: Any) -> Any:
    """`value` with CPU tensors for device tensors; dataclasses are copied, not changed."""
    return _mapped(value, lambda t: t.held if isinstance(t, DeviceTensor) else t)


def to_device(value: Any) -> Any:
    """`value` with device tensors for CPU tensors."""
    return _mapped(value, lambda t: t if isinstance(t, DeviceTensor) else DeviceTensor(t))


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_mapped(item, change) for item in value)
    if isinstance(value, tuple):
        return type(value)(*(_mapped(item, change) for item in value))
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for name, item in vars(value).items():
            object.__setattr__(copied, name, _mapped(item, change))
        return copied
    return value


@contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Inside, operators on device tensors are checked (or not, for what vLLM itself does)."""
    before, _State.strict = _State.strict, on
    try:
        yield
    finally:
        _State.strict = before


def strictly(function: Callable) -> Callable:
    """`function`, strict while it runs."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with strict():
            return function(*args, **kwargs)

    return run


def freely(function: Callable) -> Callable:
    """`function`, not strict while it runs."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with strict(False):
            return function(*args, **kwargs)

    return run


def launched(function: Callable) -> Callable:
    """A kernel's launch: takes device tensors only, computes on the CPU, gives device tensors."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        require_on_device((args, kwargs))
        with strict(False):
            return to_device(function(*to_host(args), **to_host(kwargs)))

    return run


def require_on_device(value: Any) -> None:
    """Raise `MixedDevicesError` if any tensor in `value` is a CPU tensor."""
    found: list[torch.Tensor] = []
    _mapped(value, lambda tensor: found.append(tensor) or tensor)
    for tensor in found:
        if not isinstance(tensor, DeviceTensor):
            raise MixedDevicesError(f"a kernel got a CPU tensor of shape {tuple(tensor.shape)}")
