# SPDX-License-Identifier: Apache-2.0
import torch

from vllm_eagle_pangu.training.train_head import ChunkedCrossEntropy


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(63, 16, generator=generator).bfloat16().float().requires_grad_()
    weight = torch.randn(37, 16, generator=generator).bfloat16().float().requires_grad_()
    return hidden, weight


def test_loss_and_gradients_match_torch_within_bfloat16_and_rows_of_weight_zero_count_nothing():
    hidden, weight = inputs()
    targets = torch.softmax(torch.randn(63, 37), dim=-1)
    row_weights = (torch.arange(63) % 3 > 0).float()
    log_probs = torch.log_softmax(hidden @ weight.T, dim=-1)
    expected = -((targets * log_probs).sum(-1) * row_weights).sum()
    wanted = torch.autograd.grad(expected, (hidden, weight), retain_graph=True)
    loss, best = ChunkedCrossEntropy.apply(hidden, weight, targets, row_weights, 10)
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-1)
    found = torch.autograd.grad(loss, (hidden, weight))
    torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)
    assert (best == log_probs.argmax(-1)).float().mean() > 0.9
    assert float(found[0][0].abs().max()) == 0.0
