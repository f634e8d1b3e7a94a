# SPDX-License-Identifier: Apache-2.0
"""What we prepare feeds the library speculators, 0.9.0 unmodified; the head it trains, serves.

Its dataset, collation, vocabulary loader, model, loss and checkpointer are driven here, on the CPU;
its `Trainer` would move to an accelerator. Flags that are not named below have its own defaults.
All in the process that starts engines, for importing speculators alone takes ten seconds.
"""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from vllm_eagle_pangu.models.pangu_as_llama import load_target
from vllm_eagle_pangu.training.head import draft_vocabulary, offsets_and_mask
from vllm_eagle_pangu.training.hidden_states import Teacher

from .prepared import prepare_with_states

pytestmark = pytest.mark.engine

TAPS = (1, 2, 3)
DRAFT_VOCAB, PROMPT, LENGTH = 150, 4, 40
STEPS, ROWS_PER_STEP, DRAFTS = 50, 12, 3
PROMPTS = [list(range(40, 100)), list(range(200, 130, -1)), list(b"short")]
NEW_TOKENS = 60


@dataclass(frozen=True)
class Prepared:
    folder: Path
    rows: list[list[int]]
    teacher: Teacher
    target_ids: torch.Tensor


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny_llama) -> Prepared:
    """Greedy answers of the tiny Llama, their hidden states, and a draft vocabulary."""
    teacher = Teacher(load_target(tiny_llama, torch.float32), TAPS)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (96, PROMPT), generator=generator)
    while tokens.shape[1] < LENGTH:
        said = teacher.logits(teacher.read(tokens)[:, -1, -1]).argmax(-1)
        tokens = torch.cat([tokens, said[:, None]], 1)
    rows = [row[: LENGTH - i % 7].tolist() for i, row in enumerate(tokens)]
    folder = prepare_with_states(tmp_path_factory.mktemp("run") / "prepared", teacher, rows, PROMPT)
    target_ids = draft_vocabulary(folder, teacher.config.vocab_size, DRAFT_VOCAB)
    return Prepared(folder, rows, teacher, target_ids)


@pytest.fixture(scope="module")
def flags(prepared, tiny_llama) -> Callable[[Path], list[str]]:
    """Of `speculators train`, for a head that is saved in a folder."""
    return lambda folder: [
        *("--speculator-type", "eagle3", "--draft-attn-impl", "sdpa"),
        *("--verifier-name-or-path", str(tiny_llama), "--data-path", str(prepared.folder)),
        *("--draft-vocab-size", str(DRAFT_VOCAB), "--target-layer-ids", *map(str, TAPS)),
        # Its fused loss is a Triton kernel, for accelerators.
        *("--ttt-steps", str(DRAFTS), "--loss-implementation", "eager", "--save-path", str(folder)),
    ]


@dataclass(frozen=True)
class Trained:
    head: Path
    losses: list[float]


@pytest.fixture(scope="module")
def trained(prepared, flags, tmp_path_factory) -> Trained:
    """A head that speculators built, trained on our files, and saved."""
    from speculators.model import SpeculatorModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.checkpointer import SingleGPUCheckpointer
    from speculators.train.cli import build_draft_model, parse_vocab_mappings
    from speculators.train.config import TrainConfig
    from speculators.train.data import ArrowDataset, CollateFn

    folder = tmp_path_factory.mktemp("speculators")
    args = Namespace(**TrainConfig.resolve(flags(folder)).flatten())
    d2t, t2d, size = parse_vocab_mappings(args)
    torch.manual_seed(0)
    model_class = SpeculatorModel.registry["eagle3"]
    model = build_draft_model(args, model_class, t2d, d2t, size).float()
    options, _ = model_class.get_trainer_kwargs(**vars(args))
    data = ArrowDataset(ROWS_PER_STEP * LENGTH, prepared.folder, on_missing="raise")
    collate = CollateFn(
        ROWS_PER_STEP * LENGTH, model.hidden_size, len(TAPS), torch.float32, shift_batch
    )
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=5e-3)
    losses = []
    for _ in range(STEPS):
        chosen = torch.randint(len(data), (ROWS_PER_STEP,)).tolist()
        batch = collate([data[i] for i in chosen])
        assert batch["error_records"] == 0
        tensors = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
        _, loss, _ = model(**tensors, **options)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    SingleGPUCheckpointer(folder).save_checkpoint(model, optimizer, 0, torch.float32)
    return Trained(folder / "0", losses)


def test_its_dataset_and_collation_read_every_row(prepared):
    from speculators.train.data import ArrowDataset, CollateFn

    data = ArrowDataset(LENGTH, prepared.folder, on_missing="raise")
    assert data.approx_lengths == [len(row) for row in prepared.rows]
    for i, row in enumerate(prepared.rows):
        item = data[i]
        states = prepared.teacher.read(torch.tensor([row]))[0].to(torch.bfloat16)
        assert item["input_ids"].tolist() == row
        assert item["loss_mask"].tolist() == [0] * PROMPT + [1] * (len(row) - PROMPT)
        # Rows of other lengths were read in one batch: the last bit may differ.
        torch.testing.assert_close(item["hidden_states"], states[:, :-1].flatten(1))
        torch.testing.assert_close(item["verifier_last_hidden_states"], states[:, -1])
    batch = CollateFn(3 * LENGTH, 64, len(TAPS))([data[i] for i in range(3)])
    joined = [token for row in prepared.rows[:3] for token in row]
    assert batch["input_ids"][0, : len(joined)].tolist() == joined
    assert batch["document_ids"][0].tolist().count(-1) == 3 * LENGTH - len(joined)
    assert batch["error_records"] == 0


def test_its_vocabulary_loader_takes_our_draft_vocabulary(prepared, flags, tmp_path):
    from speculators.train.cli import parse_vocab_mappings
    from speculators.train.config import TrainConfig
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    d2t, t2d, size = parse_vocab_mappings(
        Namespace(**TrainConfig.resolve(flags(tmp_path)).flatten())
    )
    assert size == DRAFT_VOCAB
    offsets, mask = offsets_and_mask(prepared.target_ids, prepared.teacher.config.vocab_size)
    assert torch.equal(d2t, offsets) and torch.equal(t2d, mask)
    counts = torch.load(prepared.folder / "token_freq.pt", weights_only=True)
    own, _ = build_vocab_mappings_from_distribution(counts, DRAFT_VOCAB, len(t2d))
    assert torch.equal(own, d2t), "of the same counts it makes the same vocabulary"


def test_its_loss_goes_down_on_our_files(trained):
    first, last = sum(trained.losses[:5]), sum(trained.losses[-5:])
    assert last < 0.7 * first


@dataclass(frozen=True)
class Decoded:
    tokens: list[list[int]]
    forwards: int


@pytest.fixture
def decode(engine, tiny_llama) -> Callable[[dict | None], Decoded]:
    """Greedy answers to PROMPTS, and the forwards of the target that all of them took."""
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def run(speculative: dict | None) -> Decoded:
        forwards = 0
        with engine(tiny_llama, speculative_config=speculative) as llm:
            core = llm.llm_engine.engine_core.engine_core
            runner = core.model_executor.driver_worker.worker.model_runner
            execute = runner.execute_model

            def counted(scheduled, *args, **kwargs):
                nonlocal forwards
                forwards += len(scheduled.num_scheduled_tokens)
                return execute(scheduled, *args, **kwargs)

            runner.execute_model = counted
            outputs = llm.generate(asked, greedy, use_tqdm=False)
        return Decoded([list(output.outputs[0].token_ids) for output in outputs], forwards)

    return run


def chain(head: Path, method: str) -> dict:
    ours = {"tree_policy": "chain"} if method == "eagle_pangu" else {}
    return {"method": method, "model": str(head), "num_speculative_tokens": DRAFTS, **ours}


def tree(head: Path) -> dict:
    shape = {"tree_width": 4, "tree_depth": DRAFTS, "num_speculative_tokens": 8}
    return {"method": "eagle_pangu", "model": str(head), **shape}


def test_its_head_serves_as_in_vllms_eagle3_and_with_trees(trained, decode):
    plain = decode(None)
    theirs, ours = (decode(chain(trained.head, method)) for method in ("eagle3", "eagle_pangu"))
    trees = decode(tree(trained.head))
    assert theirs.tokens == ours.tokens == trees.tokens == plain.tokens
    # Of the same tokens: acceptance lengths are in the ratio of the forwards.
    assert ours.forwards == theirs.forwards < 0.8 * plain.forwards
    assert trees.forwards <= ours.forwards


def test_the_head_of_its_dry_run_loads(prepared, flags, decode, tmp_path):
    head = tmp_path / "head"
    command = [sys.executable, "-m", "speculators.train", "--dry-run", *flags(head)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, check=False, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    theirs, ours = (decode(chain(head, method)) for method in ("eagle3", "eagle_pangu"))
    assert ours == theirs
