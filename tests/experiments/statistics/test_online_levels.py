"""Levels of tests that come as they come: those of the package onlineFDR, and what they promise."""

import math

import numpy as np
import pytest

from layerlab.experiments.statistics.online_levels import fallback_level, lord_level, weigh

# The example of the manual of onlineFDR 2.5.1 (LORD, LORDstar and online_fallback,
# random=FALSE, alpha 0.05, w0 = alpha / 10): p in their order, and the levels printed there.
P = [
    *(2.90e-08, 0.06743, 0.01514, 0.08174, 0.00171, 3.60e-05, 0.79149, 0.27201, 0.28295),
    *(7.59e-08, 0.69274, 0.30443, 0.00136, 0.72342, 0.54757),
]
LORD = [
    *(0.0002675839, 0.0024664457, 0.0005732818, 0.0004872805, 0.0004059066, 0.0003447286),
    *(0.0029745013, 0.0008450114, 0.0007305648, 0.0006243143, 0.0032185913, 0.0010617227),
    *(0.0009256825, 0.0008019657, 0.0007059610),
]
# Each is known one test later: decision.times = seq_len(15) + 1.
LATER = [
    *(2.675839e-04, 5.819103e-05, 2.457817e-03, 5.649373e-04, 4.810068e-04, 4.011918e-04),
    *(3.410964e-04, 2.971630e-03, 8.426900e-04, 7.286513e-04, 6.227110e-04, 3.217229e-03),
    *(1.060551e-03, 9.246646e-04, 8.010731e-04),
]
FALLBACK = [
    *(0.0026758385, 0.0032577488, 0.0004956249, 0.0004121803, 0.0003494435, 0.0003022950),
    *(0.0005682672, 0.0002372613, 0.0002140474, 0.0001949126, 0.0003737922, 0.0001652568),
    *(0.0001535420, 0.0001433627, 0.0001344368),
]


def published(number: int) -> float:
    """The weights of the manual: javanmard18, equation 31."""
    return 0.07720838 * math.log(max(number, 2)) / (number * math.exp(math.sqrt(math.log(number))))


@pytest.mark.parametrize(("lag", "expected"), [(0, LORD), (1, LATER)])
def test_lord_has_the_levels_of_the_manual(lag, expected):
    found: list[int] = []
    for number, (p, level) in enumerate(zip(P, expected, strict=True), start=1):
        known = [one for one in found if one < number]
        mine = lord_level(number, known, rate=0.05, first=0.005, weights=published)
        assert mine == pytest.approx(level, rel=1e-6), number
        if p <= mine:
            found.append(number + lag)


def test_fallback_has_the_levels_of_the_manual():
    kept = 0.0
    for number, (p, level) in enumerate(zip(P, FALLBACK, strict=True), start=1):
        mine = fallback_level(number, kept, alpha=0.05, weights=published)
        assert mine == pytest.approx(level, rel=1e-6), number
        kept = mine if p <= mine else 0.0


def test_all_weight_is_one_and_falls():
    weights = [weigh(one) for one in range(1, 20_001)]
    rest = 20_000.5 ** (1 - 1.6) / 0.6 * weights[0]  # the integral of what is left
    assert sum(weights) + rest == pytest.approx(1, abs=1e-7)
    assert weights == sorted(weights, reverse=True)


def test_with_nothing_to_find_all_levels_are_at_most_the_first_wealth():
    spent = sum(lord_level(one, [], rate=0.1, first=0.05) for one in range(1, 5001))
    assert 0.049 < spent < 0.05


@pytest.mark.full
@pytest.mark.parametrize("rule", ["lord", "fallback"])
def test_false_discoveries_stay_below_what_is_asked_for(rule):
    draw = np.random.default_rng(0)
    shares, wrong = [], 0
    for _ in range(400):
        real = draw.random(60) < 0.3
        p = np.where(real, draw.random(60) ** 12, draw.random(60))
        found: list[int] = []
        kept, false = 0.0, 0
        for number in range(1, 61):
            if rule == "lord":
                level = lord_level(number, found, rate=0.1, first=0.05)
            else:
                level = fallback_level(number, kept, alpha=0.05)
            hit = p[number - 1] <= level
            kept = level if hit else 0.0
            if hit:
                found.append(number)
                false += not real[number - 1]
        shares.append(false / max(1, len(found)))
        wrong += bool(false)
    assert len(found) > 1
    if rule == "lord":
        assert np.mean(shares) < 0.1
    else:
        # 400 campaigns: 5 % and three standard errors.
        assert wrong / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
