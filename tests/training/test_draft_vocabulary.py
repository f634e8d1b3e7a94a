# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from vllm_eagle_pangu.training.draft_vocabulary import count_tokens, most_frequent


def test_d2t_offsets_lead_to_exactly_the_ids_that_t2d_marks():
    counts = torch.randint(0, 1000, (63,), generator=torch.Generator().manual_seed(3))
    vocabulary = most_frequent(counts, 17)
    reached = torch.arange(17) + vocabulary.d2t
    assert vocabulary.d2t.dtype == torch.int64 and vocabulary.t2d.dtype == torch.bool
    assert reached.tolist() == vocabulary.t2d.nonzero().flatten().tolist()
    assert counts[reached].min() >= counts[~vocabulary.t2d].max()


def test_ties_go_to_the_lower_id():
    assert most_frequent(torch.tensor([5, 7, 5, 5]), 2).target_ids.tolist() == [0, 1]


def test_coverage_is_the_share_of_counted_tokens():
    counts = count_tokens(torch.tensor([[0, 0, 0], [2, 1, 0]]), 4)
    assert most_frequent(counts, 1).coverage(counts) == pytest.approx(4 / 6)


@pytest.mark.parametrize("size", [0, 4])
def test_sizes_that_vllm_cannot_load_are_refused(size):
    with pytest.raises(ValueError, match=f"draft_vocab_size={size}"):
        most_frequent(torch.ones(4), size)
