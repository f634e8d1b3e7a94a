# SPDX-License-Identifier: Apache-2.0
"""An openPangu-architecture target and an EAGLE-3 head of random weights: for costs, not for τ.

    python benchmarks/random_pair.py runs/random --millions 300
    eagle-pangu bench --config configs/bench/random.yaml

The target has the demo's tokenizer, so that whatever takes a pair takes this one.
"""

import argparse
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from vllm_eagle_pangu.demo import pair
from vllm_eagle_pangu.models.pangu_as_llama import save_llama_as_pangu
from vllm_eagle_pangu.training.config import HeadConfig
from vllm_eagle_pangu.training.head import EagleHead, head_config, save_head

# Millions of weights to (hidden, layers, heads, KV heads, intermediate, vocabulary).
SIZES = {30: (512, 8, 8, 2, 1408, 8192), 300: (1024, 16, 16, 4, 3072, 32768)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="target/ and draft/ are written there")
    parser.add_argument("--millions", type=int, choices=SIZES, default=300, help="of weights")
    args = parser.parse_args()
    folder = args.folder
    hidden, layers, heads, kv_heads, intermediate, vocab = SIZES[args.millions]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        head_dim=hidden // heads,
        vocab_size=vocab,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).bfloat16()
    save_llama_as_pangu(model, folder / "target", dtype=torch.bfloat16)
    for file in pair.find().target.glob("tokenizer*.json"):
        shutil.copy(file, folder / "target")
    own = HeadConfig(
        taps=(2, layers // 2, layers - 3),
        draft_vocab_size=vocab // 2,
        intermediate_size=intermediate,
        max_tokens=1,
    )
    every_second = 2 * torch.arange(vocab // 2)
    save_head(EagleHead(head_config(own, config), every_second), folder / "draft")


if __name__ == "__main__":
    main()
