# SPDX-License-Identifier: Apache-2.0
"""The training YAML: a section per stage; what does not fit is refused by key, value and mend.

A file has general keys and a section for each stage it runs:

    run_dir: runs/mine            # everything the run writes goes here
    seed: 0
    target_model: path/to/target  # or a `target:` section that trains one
    texts: ["notes/*.jsonl"]      # or a `corpus:` section that makes one
    answers: {samples: 4096}
    head: {max_minutes: 30}
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from pydantic.dataclasses import dataclass

from vllm_eagle_pangu.checked import CHECKED, Count
from vllm_eagle_pangu.config import refusal


@dataclass(frozen=True, config=CHECKED)
class CorpusConfig:
    """Stage `corpus`: Python files of installed packages, without the held-out part, in tokens of
    `target_model`, or of a BPE that is made of them."""

    packages: tuple[str, ...]
    """`stdlib`, and names of installed packages as they are imported."""
    vocab_size: Count = 6144
    max_length: Count = 2048
    """In tokens, of what it is to read; both keys are the BPE's."""
    max_file_bytes: Count = 150_000
    max_package_bytes: Count = 2_000_000
    held_out_stdlib: NonNegativeInt = 80
    """Of 1000 standard-library files, how many stay out of training."""
    held_out_packages: NonNegativeInt = 15
    held_out_prompts: NonNegativeInt = 128


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class RunConfig:
    """How a model is trained; the run ends with the budget that is used up first."""

    matrix_lr: PositiveFloat = 0.02
    """Muon's rate; `other_lr` is AdamW's."""
    other_lr: PositiveFloat = 0.002
    warmup: float = 0.02
    hold: float = 0.3
    """Progress from which the rates fall."""
    max_grad_norm: PositiveFloat = 1.0
    max_tokens: Count | None = None
    max_minutes: PositiveFloat | None = None
    save_minutes: NonNegativeFloat = 3.0
    log_every: Count = 10
    compile: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_minutes is None:
            raise refusal("max_tokens", None, "max_minutes is unset, too", "set one of them")


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class TargetConfig(RunConfig):
    """Stage `target`: an openPangu-architecture model trained from nothing."""

    hidden_size: Count = 384
    intermediate_size: Count = 1024
    layers: Count = 6
    heads: Count = 6
    kv_heads: Count = 2
    head_dim: Count = 64
    max_positions: Count = 2048
    rope_theta: PositiveFloat = 10000.0
    sequence_length: Count = 512
    long_sequence_length: Count = 1024
    long_from: float = 0.75
    """Progress from which windows have the long length."""
    tokens_per_step: Count = 8192
    micro_batch_tokens: Count = 4096
    other_lr: PositiveFloat = 0.003
    save_minutes: NonNegativeFloat = 5.0


@dataclass(frozen=True, config=CHECKED)
class AnswersConfig:
    """Stage `answers`: the target answers prompts in vLLM."""

    prompts: str | None = None
    """`instructions` for ours, or a file of {"prompt": str} lines; null for snippets of the
    corpus or of `texts`, which the target then continues."""
    chat: bool = False
    """Apply the tokenizer's chat template."""
    samples: Count = 2560
    max_tokens: Count = 288
    """Of an answer."""
    prompt_lengths: tuple[Count, ...] = (32, 64, 128, 224)
    """Of snippets, in turns."""
    temperatures: tuple[NonNegativeFloat, ...] = (0.0, 0.8)
    """In turns."""
    corpus_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of all rows, how many are plain windows of the corpus or of `texts`."""
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    batch: Count = 64
    max_model_len: Count = 1024
    kv_cache_bytes: Count | None = 1073741824
    """Null leaves it to vLLM, which takes most of a GPU."""
    max_minutes: PositiveFloat | None = None
    """Stop early and go on with the parts made so far."""


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class HeadConfig(RunConfig):
    """Stage `head`: an EAGLE-3 head trained with training-time test, or one that drafts at once."""

    taps: tuple[int, ...]
    """Layer counts: tap k is the target's residual stream after k layers."""
    draft_vocab_size: Count
    intermediate_size: Count = 1024
    parallel: bool = False
    """Train it to draft all steps in one pass, from masked rows (P-EAGLE)."""
    rollout_steps: Count = 5
    step_decay: float = 0.8
    length: Count = 512
    """Tokens of a row of a batch, which holds one answer after the other."""
    batch: Count = 4
    held_out: Count = 64
    """The last answers are not trained on: acceptance is measured on them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallel and self.rollout_steps < 2:
            problem = "the first step has no masked rows"
            mend = "make it the depth of the trees that you will draft"
            raise refusal("rollout_steps", self.rollout_steps, problem, mend)


@dataclass(frozen=True, config=CHECKED)
class TrainConfig:
    """A whole run; the sections that are present are its stages."""

    run_dir: str
    seed: int = 0
    threads: Count | None = None
    device: str = "cpu"
    """Torch device of stage `head`; a target is trained on the CPU, vLLM chooses its own."""
    target_model: str | None = None
    texts: tuple[str, ...] = ()
    corpus: CorpusConfig | None = None
    target: TargetConfig | None = None
    answers: AnswersConfig | None = None
    head: HeadConfig | None = None

    def __post_init__(self) -> None:
        if self.target is not None and self.target_model is not None:
            mend = "keep target_model to use a model you have, or the section to train one"
            problem = "a target section is given too"
            raise refusal("target_model", self.target_model, problem, mend)
        if self.corpus is not None and self.texts:
            problem = "a corpus section is given too"
            raise refusal("texts", list(self.texts), problem, "keep one of them")
