# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.training.draft_vocabulary import FREQUENCIES_FILE, vocabulary_of


def counted(folder: Path, counts: list[int]) -> Path:
    torch.save({token: n for token, n in enumerate(counts) if n}, folder / FREQUENCIES_FILE)
    return folder


def test_d2t_offsets_lead_to_exactly_the_ids_that_t2d_marks(tmp_path):
    counts = torch.randint(0, 1000, (63,), generator=torch.Generator().manual_seed(3))
    vocabulary = vocabulary_of(counted(tmp_path, counts.tolist()), 63, 17)
    reached = torch.arange(17) + vocabulary.d2t
    assert vocabulary.d2t.dtype == torch.int64 and vocabulary.t2d.dtype == torch.bool
    assert reached.tolist() == vocabulary.t2d.nonzero().flatten().tolist()
    assert counts[reached].min() >= counts[~vocabulary.t2d].max()
    assert vocabulary.coverage(counts) == pytest.approx(int(counts[reached].sum()) / counts.sum())


def test_ties_go_to_the_lower_id_and_ids_never_said_fill_up(tmp_path):
    assert vocabulary_of(counted(tmp_path, [5, 7, 5, 5]), 6, 2).target_ids.tolist() == [0, 1]
    assert vocabulary_of(tmp_path, 6, 5).target_ids.tolist() == [0, 1, 2, 3, 4]


def test_it_is_made_once_where_speculators_looks_for_it_too(tmp_path):
    first = vocabulary_of(counted(tmp_path, [0, 3, 0, 9, 1]), 5, 2)
    counted(tmp_path, [9, 0, 9, 0, 0])
    assert torch.equal(vocabulary_of(tmp_path, 5, 2).target_ids, first.target_ids)
    assert np.load(tmp_path / "d2t-2.npy").tolist() == first.d2t.tolist()
    assert np.load(tmp_path / "t2d-2.npy").tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("size", [0, 4])
def test_sizes_that_vllm_cannot_load_are_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"draft_vocab_size={size}.*has 4; choose"):
        vocabulary_of(counted(tmp_path, [1, 1, 1, 1]), 4, size)
