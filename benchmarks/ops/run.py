# SPDX-License-Identifier: Apache-2.0
"""Times every op's definition and the device's implementation, as CSV, against the memory floor.

    python benchmarks/ops/run.py  # on this machine's GPU, or CPU without one

Refuses while the ops' tests are red, on a GPU the ladder's cases: the time of a wrong answer is no
figure. The memory floor is the time in which the bytes that an op must move would be copied here
(measured in the same run). On a GPU it is the GPU's time, of a graph where one can be captured, and
nothing that an op reads is in its cache.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sizes import Measurement, measurements

from vllm_eagle_pangu.doctor import ops
from vllm_eagle_pangu.doctor.child import findings_of_each
from vllm_eagle_pangu.doctor.device import CPU, CUDA, IMPLEMENTATIONS
from vllm_eagle_pangu.doctor.finding import OK
from vllm_eagle_pangu.measure.files import write_csv
from vllm_eagle_pangu.measure.statistics import percentile
from vllm_eagle_pangu.tracing.provenance import device_facts, versions

ROOT = Path(__file__).parents[2]
CACHE = 256 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    device = CUDA if torch.cuda.is_available() else CPU
    parser.add_argument("--device", choices=(CPU, CUDA), default=device)
    parser.add_argument("--op", action="append", help="only this op; may be given several times")
    parser.add_argument("--milliseconds", type=float, default=300, help="per measurement")
    parser.add_argument("--out", type=Path, help="CSV, benchmarks/results/ops-DEVICE.csv if unset")
    args = parser.parse_args()

    if not _right(args.device):
        print("ops benchmark: the ops' tests fail; no times until they pass", file=sys.stderr)
        return 1
    bandwidth = _bandwidth(args.device)
    print(f"copying moves {bandwidth / 1e9:.1f} GB/s")
    rows = []
    for measurement in measurements(args.device):
        if args.op and measurement.op not in args.op:
            continue
        for implementation in ("reference", IMPLEMENTATIONS[args.device]):
            rows.append(_row(args, measurement, implementation, bandwidth))
            print(
                "{op:>16} {implementation:>10} {shape:<36} {p50:>10} us".format(**rows[-1]),
                flush=True,
            )
    out = args.out or ROOT / "benchmarks" / "results" / f"ops-{args.device}.csv"
    write_csv(rows, out)
    print(out)
    return 0


def _right(device: str) -> bool:
    if device == CPU:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "tests/kernels"]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    found = list(findings_of_each(ops.names(device), "ops.on_all_cases", device))
    print(*(finding.line() for finding in found), sep="\n", flush=True)
    return all(finding.state == OK for finding in found)


def _row(
    args: Any, measurement: Measurement, implementation: str, bandwidth: float
) -> dict[str, Any]:
    def run() -> None:
        measurement.run(**measurement.inputs, implementation=implementation)

    call, launch = _captured(run) if args.device == CUDA else (run, "call")
    times = _times(call, args.device, args.milliseconds)
    floor = measurement.bytes_moved / bandwidth * 1e6
    return {
        "op": measurement.op,
        "implementation": implementation,
        "shape": measurement.shape,
        "dtype": measurement.dtype,
        "device": _device_name(args.device),
        "launch": launch,
        "unit": "us",
        **{f"p{share}": round(percentile(times, share), 2) for share in (20, 50, 80)},
        "bytes_moved": measurement.bytes_moved,
        "floor_fraction": round(floor / percentile(times, 50), 4),
        "versions": _versions(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _times(run: Callable[[], Any], device: str, milliseconds: float) -> list[float]:
    """Microseconds of single calls."""
    for _ in range(3):
        run()
    timed = _seconds_on_gpu(run) if device == CUDA else partial(_seconds, run)
    times: list[float] = []
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end or len(times) < 10:
        times.append(timed() * 1e6)
    return times


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _seconds_on_gpu(run: Callable[[], Any]) -> Callable[[], float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # More than any GPU's L2, whose time also covers that in which the host launches what follows.
    other = torch.empty(CACHE, dtype=torch.uint8, device=CUDA)

    def timed() -> float:
        other.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return timed


def _captured(run: Callable[[], Any]) -> tuple[Callable[[], Any], str]:
    """Replays of a graph of `run`, and "graph"; or `run` and "call" where it waits for the GPU."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return run, "call"
    return graph.replay, "graph"


def _bandwidth(device: str) -> float:
    """Bytes per second, read and written, of a copy that no cache holds."""
    size = 1 << (31 if device == CUDA else 28)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    to = torch.empty_like(source)
    times = _times(lambda: to.copy_(source), device, 1000)
    return 2 * size / (percentile(times, 20) / 1e6)


def _device_name(device: str) -> str:
    facts = device_facts(device)
    threads = f", {facts['torch_threads']} threads" if device == CPU else ""
    return f"{facts['name']}{threads}"


def _versions() -> str:
    found = versions()
    names = ("torch", "vllm-eagle-pangu", *(["triton"] if torch.cuda.is_available() else []))
    return " ".join(f"{name}={found[name]}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
