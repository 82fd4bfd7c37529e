"""Limits of rounding are those of errors that were drawn, and of digits that were cut off."""

import pytest
import torch
from torch import Tensor

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.rounding_limits import LEAST, find_limits

TRIALS = 200


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("digits", [0, 1, 3, 6])
def test_the_floor_is_the_error_of_the_digits_that_were_cut_off(digits):
    values = 10 ** (1 - digits) * draw(0, 20_000)
    cut = values.round(decimals=digits)
    limits = find_limits([torch.zeros_like(values)], cut)
    assert limits.floor == pytest.approx(rms(cut - values), rel=0.02)
    assert not limits.are_passed(cut - values) and limits.are_passed(4 * (cut - values))


def test_the_floor_is_what_float32_makes_of_the_last_profile():
    wide, usual = draw(0, 2, 500).abs() * torch.tensor([[1.0], [0.01]])
    recorded = draw(1, 500)
    limits = find_limits([wide, usual], recorded)
    assert limits.floor == find_limits([usual], recorded).floor
    assert limits.floor == pytest.approx(find_limits([wide], recorded).floor / 100, rel=0.2)


@pytest.mark.parametrize("tokens", [LEAST, 1000])
def test_the_mean_of_a_record_strays_as_that_of_what_was_drawn(tokens):
    profile, records = draw(0, tokens), draw(1, TRIALS, tokens)
    limits = find_limits([profile - profile.mean()], profile)
    assert not any(limits.are_passed(one) for one in records)
    shifted = 8 / tokens**0.5
    assert limits.is_passed(1.0, shifted) and limits.is_passed(1.0, -shifted)


def test_the_mean_that_a_profile_makes_is_allowed_twice():
    even = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(5000)
    limits = find_limits([even + 0.1, even], even / 3)
    assert not limits.is_passed(1.0, 0.19) and not limits.is_passed(1.0, -0.19)
    assert limits.is_passed(1.0, 0.25) and limits.is_passed(1.0, -0.25)


def test_no_token_is_far_out_that_some_profile_makes_so_large():
    even = torch.tensor([0.2, -0.2], dtype=torch.float64).repeat(105)
    spiky, error = torch.zeros_like(even), even.clone()
    spiky[0], error[9] = 5, 9.9
    assert find_limits([spiky, even], even / 3).are_passed(error)
    assert not find_limits([spiky, even], even / 3).find_outliers(error).any()
    assert find_limits([even, even], even / 3).find_outliers(error).nonzero().tolist() == [[9]]


def test_no_more_are_far_out_than_rounding_cannot_make():
    even = torch.tensor([0.01, -0.01], dtype=torch.float64).repeat(105)
    limits = find_limits([even], even / 3)
    error = even.clone()
    error[3], error[4] = -9, 0.015
    assert limits.find_outliers(error).nonzero().tolist() == [[3]]
    # Of all tokens together no more is seen than rounding makes.
    error[3] = 0.025
    assert not limits.are_passed(error) and not limits.find_outliers(error).any()


@pytest.mark.parametrize("tokens", [LEAST, 99])
def test_of_few_tokens_one_may_be_far_out(tokens):
    even = torch.full((tokens,), 0.01, dtype=torch.float64)
    even[::2] *= -1
    error = even.clone()
    error[3] = 9
    assert find_limits([even], even / 3).find_outliers(error).nonzero().tolist() == [[3]]
