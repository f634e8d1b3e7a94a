#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a machine with a GPU and a CUDA build of vLLM is asked first, each part with a limit of its
# own: its facts, every kernel against its reference and the kernels' times, lossless decoding and
# E1 of the demo pair, its growth by CUDA graphs, closed loops of it.
#
#     benchmarks/on_gpu.sh OUT [PART...]      # files and logs go to OUT
set -uo pipefail
mkdir -p "$1"
out=$(realpath "$1")
shift
parts=("${@:-facts kernels ladder graphs loops}")
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONUNBUFFERED=1

limited() { # seconds, log, command
  local began=$SECONDS
  timeout "$1" "${@:3}" > >(tee "$out/$2.log") 2>&1
  echo "== $2: exit status $?, $((SECONDS - began)) s"
}

for part in ${parts[*]}; do
  case $part in
    facts)
      nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv
      python3 -c 'import torch, triton; print(torch.__version__, triton.__version__)'
      lscpu | grep -E "Model name|^CPU\(s\)"
      ;;
    kernels)
      limited 240 kernels python3 benchmarks/ops/run.py --device cuda --milliseconds 60 \
        --out "$out/ops-cuda.csv"
      ;;
    ladder)
      limited 420 ladder python3 -m vllm_eagle_pangu.cli doctor --ladder --out "$out/doctor-cuda.md"
      ;;
    graphs)
      limited 300 graphs python3 benchmarks/growth_graphs.py
      ;;
    loops)
      limited 420 loops python3 benchmarks/closed_loop.py --pair demo --batches 1 8 32 \
        --rounds 3 --seconds 1 --only chain-6 tree-3-5-12 adaptive-4-5-16 --also plain-2
      ;;
    *)
      echo "no part $part: facts, kernels, ladder, graphs, loops"
      exit 2
      ;;
  esac
done
