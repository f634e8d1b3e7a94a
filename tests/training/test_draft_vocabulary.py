# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import torch

from vllm_eagle_pangu.training.head import (
    FREQUENCIES_FILE,
    draft_vocabulary,
    offsets_and_mask,
)


def counted(folder: Path, counts: list[int]) -> Path:
    torch.save({token: n for token, n in enumerate(counts) if n}, folder / FREQUENCIES_FILE)
    return folder


def test_d2t_offsets_lead_to_exactly_the_ids_that_t2d_marks(tmp_path, capsys):
    counts = torch.randint(0, 1000, (63,), generator=torch.Generator().manual_seed(3))
    target_ids = draft_vocabulary(counted(tmp_path, counts.tolist()), 63, 17)
    d2t, t2d = offsets_and_mask(target_ids, 63)
    reached = torch.arange(17) + d2t
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool
    assert reached.tolist() == t2d.nonzero().flatten().tolist() == target_ids.tolist()
    assert counts[reached].min() >= counts[~t2d].max()
    share = int(counts[reached].sum()) / int(counts.sum())
    assert f"draft vocabulary: {share:.2%} of" in capsys.readouterr().out


def test_ties_go_to_the_lower_id_and_ids_never_said_fill_up(tmp_path):
    assert draft_vocabulary(counted(tmp_path, [5, 7, 5, 5]), 6, 2).tolist() == [0, 1]
    assert draft_vocabulary(tmp_path, 6, 5).tolist() == [0, 1, 2, 3, 4]


def test_it_is_made_once_where_speculators_looks_for_it_too(tmp_path):
    first = draft_vocabulary(counted(tmp_path, [0, 3, 0, 9, 1]), 5, 2)
    counted(tmp_path, [9, 0, 9, 0, 0])
    assert torch.equal(draft_vocabulary(tmp_path, 5, 2), first)
    assert np.load(tmp_path / "d2t-2.npy").tolist() == (first - torch.arange(2)).tolist()
    assert np.load(tmp_path / "t2d-2.npy").tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("size", [0, 4])
def test_sizes_that_vllm_cannot_load_are_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"draft_vocab_size={size}.*has 4; choose"):
        draft_vocabulary(counted(tmp_path, [1, 1, 1, 1]), 4, size)
