"""What engines do to logits is found in logits that are drawn, held against their own samplers."""

import re

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from transformers import TopKLogitsWarper, TopPLogitsWarper

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded import logit_mistakes
from layerlab.numerics.recorded.logit_mistakes import (
    LogitSample,
    RecordedLogits,
    _sort,
    find_cap,
    measure_best,
    measure_nuclei,
    try_cap,
    try_cut,
    try_logits,
    try_temperature,
)

TOKENS, ENTRIES = 40, 12


def draw(seed: int = 0, tokens: int = TOKENS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(tokens, ENTRIES, generator=generator, dtype=torch.float64)
    return logits, logits.softmax(-1).multinomial(1, generator=generator)[:, 0]


def score(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def noise(seed: int, size: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(TOKENS, generator=generator, dtype=torch.float64)


def test_a_sample_is_every_so_many_th_token_of_all_texts(monkeypatch):
    logits, targets = draw()
    monkeypatch.setattr(logit_mistakes, "KEPT", TOKENS // 4 * ENTRIES * logits.element_size())
    sample = LogitSample(TOKENS)
    for part in (slice(0, 7), slice(7, 30), slice(30, TOKENS)):
        sample.add(targets[part], [logits[part], logits[part] + 1])
    recorded = torch.arange(TOKENS, dtype=torch.float64)
    recorded[8] = torch.nan
    found = sample.select(recorded)
    kept = [at for at in range(0, TOKENS, 4) if at != 8]
    assert found.values.tolist() == kept and torch.equal(found.rows, logits[kept])
    assert torch.equal(found.targets, targets[kept])


@pytest.mark.parametrize(
    ("measure", "warper"),
    [
        (measure_best, lambda cut: TopKLogitsWarper(int(cut))),
        (measure_nuclei, lambda cut: TopPLogitsWarper(cut)),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_leaves_what_a_sampler_would(measure, warper, seed):
    logits, targets = draw(seed, 8)
    values = score(logits, targets) + 0.5
    cuts, left = measure(_sort(RecordedLogits(logits, targets, values), 1.0))
    expected = []
    for cut in cuts:
        rows = warper(cut)(None, logits.clone())
        own = score(rows, targets)
        expected.append(rms(values - own) if own.isfinite().all() else torch.inf)
    torch.testing.assert_close(left.double(), torch.tensor(expected, dtype=torch.float64))
    assert 0 < sum(one < torch.inf for one in expected) < len(expected)


def test_the_interval_of_a_temperature_is_as_wide_as_it_strays():
    (logits, targets), found = draw(), []
    for seed in range(60):
        values = score(logits / 0.5, targets) + noise(seed, 0.02)
        name = try_temperature(RecordedLogits(logits, targets, values)).name
        found.append([float(one) for one in re.findall(r"[\d.]+", name)])
    value, low, high = torch.tensor(found, dtype=torch.float64).T
    assert bool(((low < 0.5) & (0.5 < high)).all())
    assert float((high - low).mean()) == pytest.approx(8 * float(value.std()), rel=0.3)


@pytest.mark.parametrize("size", [0.05, 0.25, 0.3, 0.35, 0.5])
def test_a_cap_is_sure_where_errors_are_so_much_likelier(size):
    # As with a normal distribution where it lies four standard errors off.
    logits, targets = draw()
    values = score(4 * (logits / 4).tanh(), targets) + noise(1, size)
    sample = RecordedLogits(logits, targets, values)
    warm = values - score(logits / 1.2, targets)
    cap = try_cap(sample).left
    likelier = (
        TOKENS * Normal(0.0, cap).log_prob(torch.tensor(cap))
        - Normal(0.0, rms(warm)).log_prob(warm).sum()
    )
    found = find_cap(sample, 1.2)
    assert (found is not None) == (2 * float(likelier) > 4**2)


@pytest.mark.parametrize("warmth", [0.4, 1.0, 1.7])
@pytest.mark.parametrize(
    ("measure", "warper", "word"),
    [
        (measure_best, TopKLogitsWarper(4), "top-k 4"),
        (measure_nuclei, TopPLogitsWarper(0.9), "top-p 0.9"),
    ],
)
def test_a_cut_is_named_with_the_temperature_beside_it(measure, warper, word, warmth):
    logits, _ = draw(2)
    rows = warper(None, logits / warmth)
    targets = rows.softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    sample = RecordedLogits(logits, targets, score(rows, targets))
    found = try_cut(sample, measure, word.split()[0])
    heat = "" if warmth == 1 else f"temperature {warmth:g} and "
    assert found.name == f"{heat}{word} applied" and found.left < 1e-3


def test_no_cut_is_told_where_a_temperature_says_as_much():
    logits, targets = draw()
    values = score(logits / 0.8, targets) + noise(0, 0.01)
    names = [one.name for one in try_logits(RecordedLogits(logits, targets, values))]
    assert not any("top-" in one for one in names) and names[0].startswith("temperature 0.")
