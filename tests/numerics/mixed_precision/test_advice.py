"""Advice as a value: what it shows, and what it hands on."""

import json
from dataclasses import replace
from math import inf

from layerlab.numerics.emulation.policies.policy import Policy
from layerlab.numerics.mixed_precision.advice import (
    FAILS,
    Advice,
    AdviceCheck,
    KeepOption,
    Price,
)

ADVICE = Advice(
    policy=Policy(format="bf16", keep=("residual",)),
    budget=0.3,
    choices=(
        KeepOption(keep="residual", alone=0.25, left=0.25),
        KeepOption(keep="<b>norm</b>", alone=0.5),
        KeepOption(keep="head", alone=inf),
    ),
    error=1e-4,
    left=0.25,
    autocast=0.5,
    real=0.35,
    real_error=1.1e-4,
    cost=Price(flops=25, all_flops=100, bytes=10, all_bytes=40, numbers=5, all_numbers=20),
    counsels=(
        AdviceCheck(advice="this", source="me", verdict=FAILS, reason="0.9 is left", left=0.9),
    ),
    refused={"mixer": "torch refuses"},
    runs=9,
    tokens=80,
    deviation=0.01,
)


def test_advice_shows_itself():
    text = str(ADVICE)
    for part in (
        "residual",
        "mixer",
        "refused: torch refuses",
        "0.250 ± 0.010 of it, 0.350 in a real run: beyond the budget of 0.3",
        "whose parameters and residual stream are float32, leaves 0.500 of it",
        "25.0% of 100 in products",
        "grow by 10, 25.0%",
        "layerlab.apply_precision(model, advice.policy)",
        "me advises this: fails; 0.9 is left",
    ):
        assert part in text
    assert "keep residual; 0.250 of the error is left" in repr(ADVICE)
    assert "<b>" not in ADVICE._repr_html_() and "&lt;b&gt;norm" in ADVICE._repr_html_()


def test_what_is_chosen_is_shown_in_the_order_of_choosing():
    choices = tuple(
        KeepOption(keep=name, alone=alone, left=left)
        for name, alone, left in [("a", 0.1, 0.05), ("b", 0.2, None), ("c", 0.3, 0.3)]
    )
    policy = Policy(format="bf16", keep=("c", "a"))
    shown = str(replace(ADVICE, choices=choices, policy=policy)).splitlines()[1:4]
    assert [line[0] for line in shown] == ["c", "a", "b"]


def test_a_format_that_torch_has_not_is_emulated():
    policy = Policy(format="fp8_e4m3", keep=("residual",))
    text = str(replace(ADVICE, policy=policy, autocast=None))
    assert "autocast" not in text
    assert 'with layerlab.emulate(model, "fp8_e4m3", policy=advice.policy): ...' in text
    assert "apply_precision" not in text


def test_a_budget_that_is_not_reached_is_told_in_a_sentence():
    assert ADVICE.shortfall in str(ADVICE) and ADVICE.shortfall == (
        "the budget of 0.3 is not reached: the policy that was found leaves 0.350 of the squared"
        " error, and one that keeps everything does not reach it either; give a larger budget, or"
        " run in float32"
    )
    assert replace(ADVICE, real=None).shortfall == ""
    assert "keep    nothing helps" in str(replace(ADVICE, policy=Policy(format="bf16", keep=())))


def test_advice_is_a_table_and_strict_json():
    frame = ADVICE.frame()
    assert frame.columns.tolist() == ["keep", "alone", "left", "chosen"]
    assert frame.chosen.tolist() == [True, False, False]
    assert frame.left.isna().tolist() == [False, True, True]

    counsels = (replace(ADVICE.counsels[0], left=inf),)
    without = replace(ADVICE, autocast=inf, real=inf, counsels=counsels).to_dict()
    assert without["autocast"] is without["real"] is without["counsels"][0]["left"] is None
    found = json.loads(json.dumps(ADVICE.to_dict(), allow_nan=False))
    assert found["choices"][2]["alone"] is None and found["reached"] is False
    chosen = tuple(replace(one, left=inf) for one in ADVICE.choices)
    assert replace(ADVICE, choices=chosen).to_dict()["choices"][0]["left"] is None
    assert found["cost"]["work"] == 0.25 and found["policy"]["keep"] == ["residual"]
