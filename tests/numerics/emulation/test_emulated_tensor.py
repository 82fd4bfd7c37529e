"""Carriers: memory that they share or own, and numbers that are none of the values."""

import pytest
import torch
from torch import Tensor, nn

from layerlab.numerics.emulation.emulate import emulate
from layerlab.numerics.formats.round import round_to
from tests.measures.family import built


class Widening(nn.Module):
    """Widens its input, and writes into what it got, as norms in place do."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide = x.to(torch.float32)
        wide.add_(1)
        low = wide.to(torch.bfloat16)
        low.mul_(3)
        return x, wide, low


@pytest.mark.parametrize("mode", ["as-run", "flat"])
def test_a_cast_is_a_copy(mode):
    given = torch.linspace(-1, 1, 37).bfloat16()
    with emulate(Widening(), "bf16", mode) as run:
        x, wide, low = run.model(given)
    assert torch.equal(x, given.float())
    expected = given.float() + 1
    assert torch.equal(wide, expected if mode == "as-run" else round_to(expected, "bf16"))
    assert torch.equal(low, (wide.bfloat16() * 3).float())


class Overlapping(nn.Module):
    """Rounds what several elements share, and what is a view of its input."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spread = torch.full((1,), 1 / 3).expand(4).to(torch.bfloat16)
        return x[:, ::2] * 1.1, spread + x[0, :4]


def test_results_that_share_memory_are_rounded_apart():
    given = torch.randn(3, 8).bfloat16()
    with emulate(Overlapping(), "bf16", "flat") as run:
        scaled, added = run.model(given)
    assert torch.equal(scaled, (given[:, ::2].float() * 1.1).bfloat16().float())
    assert torch.equal(added, (given[0, :4] + torch.tensor(1 / 3).bfloat16()).float())


@pytest.mark.full
@pytest.mark.parametrize(("format", "tokens"), [("fp8_e4m3", 40), ("bf16", 900)])
def test_counts_of_tokens_are_no_values(format, tokens):
    """More tokens go to an expert, and more experts there are, than a format counts."""
    model = built("mixtral")
    drawn = torch.Generator().manual_seed(3)
    ids = torch.randint(3, model.config.vocab_size, (1, tokens), generator=drawn)
    found = {}
    for experts in ("grouped_mm", "eager"):
        model.config._experts_implementation = experts
        with emulate(model, format, "flat"):
            found[experts] = model(ids).logits
    assert torch.equal(found["grouped_mm"], found["eager"])


class Counting(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return torch.histc(numbers.float(), bins=600, min=0, max=599)


def test_numbers_that_are_counted_are_not_rounded():
    numbers = torch.arange(600).repeat_interleave(2)
    with emulate(Counting(), "bf16", "flat") as run:
        assert torch.equal(run.model(numbers), torch.full((600,), 2.0))


class Halved(nn.Module):
    """Asks for a softmax as torch itself does on CUDA for halves that are to be widened."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.ops.aten._softmax(x, -1, False)
        return kept, torch.ops.aten._softmax(x, -1, True)


@pytest.mark.parametrize("mode", ["as-run", "flat"])
def test_a_softmax_that_widens_halves_is_one_in_float32(mode):
    given = torch.linspace(-4, 4, 37).half()
    exact = given.float().softmax(-1)
    with emulate(Halved(), "fp16", mode) as run:
        kept, widened = run.model(given)
    assert torch.equal(kept, round_to(exact, "fp16"))
    assert torch.equal(widened, exact if mode == "as-run" else round_to(exact, "fp16"))
