"""The table fits its terminal, and nothing of it is read as markup."""

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.table import differences
from layerlab.experiments.analysis.verdict import number
from layerlab.experiments.plan.factors import planned_factors
from tests.training.support.drawn import recipe, records, runs

BETTER = {1: 2.99, 2: 3.2895, 3: 3.0905}


def comparison(gpt2: Mapping[int, float] = BETTER, **given: object) -> Comparison:
    losses = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": gpt2}
    found = compare_runs(recipe(), records(recipe(), losses))
    return Comparison({**found.content, **given})


def printed(found: Comparison, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(found.table(width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 160, 200])
def test_no_column_is_left_out_and_all_fit(width):
    said = printed(comparison(), width)
    assert max(map(len, said.splitlines())) <= width
    heads = [line.split() for line in said.splitlines() if line.startswith("arm  ")]
    shown = [word for head in heads for word in head if word not in ("(Holm)", "%", "a", "run")]
    assert sorted(shown) == sorted([*NAMES, *["arm"] * len(heads), "verdict"])
    main = said[said.index("arm ") :].partition("\n\n")[0]
    assert "-0.0100" in main and "better" in main
    assert "differences to llama" in " ".join(said.split())
    assert "compared at one learning rate" in " ".join(said.split())


NAMES = (
    *("n", "mean", "sd", "difference", "interval", "p", "detectable", "start", "rate", "match"),
    *("parameters", "tokens/s", "memory", "time"),
)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_what_decides_stands_beside_the_verdict(width):
    found = comparison()
    said = printed(found, width)
    main = said[said.index("arm ") :].partition("\n\n")[0]
    row = found.row("gpt2")
    ends = [number(end) for end in row["detectable"]]
    wanted = ("3.1233", "-0.0100", "-0.0112", "-0.0088", "0.00083", *ends)
    assert [one for one in wanted if one not in main] == []
    assert ("Cost" not in said) == ("memory" in main) == (width >= 160)
    assert ("Details" not in said) == ("match %" in main)


def test_the_legend_says_what_was_asked_for():
    usual = " ".join(printed(comparison(), 200).split())
    assert "interval: 95 %;" in usual and "probability of 80 %;" in usual
    asked = comparison(confidence=0.99, power=0.9, match="flops")
    said = " ".join(printed(asked, 200).split())
    assert (
        "interval: 99 %;" in said and "probability of 90 %;" in said and "interval: 95" not in said
    )
    assert "match %: FLOPs beyond the baseline's" in said


def test_of_long_names_the_last_column_goes_below():
    losses = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 3.1, 2: 3.2, 3: 3.1}}
    found = compare_runs(recipe(), records(recipe(), losses))
    rows = [{**row, "arm": f"{row['arm']}-with-a-long-name"} for row in found.rows]
    said = printed(Comparison({**found.content, "rows": rows}), 80)
    assert max(map(len, said.splitlines())) <= 80
    main, beside, cost = said[said.index("arm ") :].split("\n\n")[:3]
    assert "p (Holm)" in main and "detectable" not in main
    assert beside.startswith("Details") and "detectable" in beside and cost.startswith("Cost")


def test_what_can_be_detected_has_the_digits_of_the_difference_beside_it():
    near = comparison({1: 2.99999, 2: 3.299988, 3: 3.099991})
    row = near.row("gpt2")
    low, high = row["detectable"]
    assert 1e-6 < low < high < 5e-4
    (line, *_) = (one for one in printed(near, 120).splitlines() if one.startswith("gpt2"))
    assert f"{row['difference']:+.2g}" in line and f" {low:.2g} to {high:.2g} " in line


def test_a_verdict_breaks_between_its_words():
    losses = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 3.1, 2: 3.2, 3: 3.1}}
    said = printed(compare_runs(recipe(), records(recipe(), losses)), 80)
    head = said[: said.index("Details")]
    assert "not" in head.split() and "distinguishable" in head.split()


def test_what_came_from_outside_is_text():
    hostile = "[/b] [red]x\x1b[31m\x07\u202e\nnext"
    said = printed(comparison(name=hostile, about=hostile, remarks=[hostile]), 100)
    assert said.count("[/b] [red]x [31m") == 3
    assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said


def test_what_is_unknown_is_a_dash():
    said = printed(compare_runs(recipe(), []), 200)
    line = next(line for line in said.splitlines() if line.startswith("gpt2"))
    assert line.split().count("-") >= 8 and "no verdict" in line


def test_in_what_arms_differ_stands_below_the_numbers():
    arms = [
        {"name": "post", "variant": "llama", "options": {"placement": "post"}},
        {"name": "wide", "variant": "llama", "set": {"model.inner": 48}},
        {"name": "series", "variant": "llama", "options": {"ffn": "siaf", "n": 3}},
    ]
    small = recipe("llama", *arms)
    rows = planned_factors(small, runs(small))
    assert differences(rows) == [
        "post against llama: norm: placement pre -> post; as many parameters, as many FLOPs a "
        "token",
        "wide against llama: size: inner 32 -> 48; +1,536 parameters (+10.38 %), +3,072 FLOPs a "
        "token (+14.04 %)",
        "series against llama: ffn: swiglu -> siaf, n 3; "
        + differences(rows)[2].partition("n 3; ")[2],
    ]
    assert differences([{"arm": "a", "against": "b"}]) == [
        "a against b: not known: one of the two has no run, or names a part that is not loaded"
    ]
    said = printed(comparison(), 80)
    below = said[said.index("Differs") :]
    assert "gpt2 against llama: norm: rms -> layer; attention: bias none -> all;" in below
    assert "Differs" not in printed(Comparison({**comparison().content, "rows": []}), 80)


def test_counts_are_written_as_whole_numbers_and_their_mean_is_not():
    seeds = [
        {"seed": 1, "value": 0.0, "baseline": 9.0, "difference": -9.0},
        {"seed": 2, "value": 1.0, "baseline": 2.0, "difference": -1.0},
    ]
    means = {"mean": 0.5, "against_mean": 5.5, "difference": -5.0, "said": ""}
    row = {"measure": "spikes", "arm": "gpt2", "against": "llama", "seeds": seeds, **means}
    said = [line.split() for line in printed(comparison(measures=[row]), 80).splitlines()]
    assert ["llama", "9", "2", "5.5000"] in said and ["gpt2", "0", "1", "0.5000"] in said
    assert ["gpt2", "less", "llama", "-9", "-1", "-5.0000"] in said
    seeds[0]["value"] = 0.25
    fractions = [line.split() for line in printed(comparison(measures=[row]), 80).splitlines()]
    assert ["gpt2", "0.2500", "1.0000", "0.5000"] in fractions
