# SPDX-License-Identifier: Apache-2.0
"""From the host to the device, without waiting for it."""

from collections.abc import Sequence

import numpy as np
import torch


def upload(device: torch.device, **arrays: Sequence[int] | np.ndarray) -> dict[str, torch.Tensor]:
    """Each array as `[n] int64` on `device`, under its name, all of them in one copy.

    Off the CPU the copy starts in pinned memory: it then joins the device's queue, where a copy
    from ordinary memory may wait for the queue to drain.
    """
    parts = [np.asarray(array, dtype=np.int64) for array in arrays.values()]
    flat = torch.from_numpy(np.concatenate(parts))
    flat = tensor_to(flat, device)
    return dict(zip(arrays, flat.split([len(part) for part in parts]), strict=True))


def tensor_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`: by pinned memory as above where that is none, else when it is there."""
    if device.type == "cpu":
        return tensor.cpu()
    return tensor.pin_memory().to(device, non_blocking=True)
