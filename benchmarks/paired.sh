#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two checkouts of this repository against each other, each behind `vllm serve` on the demo pair with
# trees (4,5,16), asked in turn by `vllm bench serve`: greedy, 1, 8 and 32 clients. Some 12 minutes.
#
#     benchmarks/paired.sh BEFORE AFTER [PAIRS]      # in an environment of `make setup`
#
# Prints tokens per second of each turn, and by clients the median of after / before and its spread.
set -euo pipefail
before=$(realpath "$1") after=$(realpath "$2") pairs=${3:-9}
home=$(realpath "$(dirname "$0")/..") work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -r "$work"' EXIT
export PATH="$home/.venv/bin:$PATH" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR
pair="$home/vllm_eagle_pangu/demo_pair"
tree='{"method": "eagle_pangu", "model": "'$pair'/draft", "num_speculative_tokens": 16,
  "tree_width": 4, "tree_depth": 5}'

serve() { # checkout, port; the environment's own checkout stands behind this one
  mkdir "$work/$2"
  cp -rs "$1/vllm_eagle_pangu" "$work/$2"
  ln -s "$1/kernels" "$work/$2/vllm_eagle_pangu/kernels"
  PYTHONPATH=$work/$2 vllm serve "$pair/target" --port "$2" --speculative-config "$tree" \
    --dtype bfloat16 --enforce-eager --max-model-len 1152 --max-num-seqs 32 \
    --max-num-batched-tokens 1152 --kv-cache-memory-bytes 268435456 --no-enable-prefix-caching \
    >"$work/server-$2" 2>&1 &
  until grep -q "Application startup complete" "$work/server-$2"; do
    kill -0 $! || { cat "$work/server-$2"; exit 1; }
    sleep 1
  done
}

ask() { # port, clients, requests
  vllm bench serve --model "$pair/target" --port "$1" --max-concurrency "$2" --num-prompts "$3" \
    --dataset-name custom --dataset-path "$pair/heldout_prompts.jsonl" --custom-output-len 128 \
    --skip-chat-template --temperature 0 --ignore-eos --disable-tqdm --seed 1 2>"$work/client" |
    awk '/Output token throughput/ { print $NF }'
}

serve "$before" 8101
serve "$after" 8102
for clients in 1 8 32; do
  for pair_no in $(seq 0 "$pairs"); do # the first is not counted
    a=$(ask 8101 $clients $((16 + 2 * clients)))
    b=$(ask 8102 $clients $((16 + 2 * clients)))
    echo "$clients clients: $a $b"
    ((pair_no == 0)) || awk "BEGIN { print $b / $a }" >>"$work/$clients"
  done
  sort -n "$work/$clients" | awk -v clients=$clients '{ r[NR] = $1 } END {
    printf "%d clients: after / before %.3f (%.3f to %.3f)\n", clients, r[int((NR + 1) / 2)], r[1], r[NR] }'
done
