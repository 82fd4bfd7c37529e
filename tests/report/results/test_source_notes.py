from typing import Any

import numpy as np
import pandas as pd

from layerlab.report.results.source_notes import notes
from tests.report.support.reading import card, frames


def titles(tables: dict[str, pd.DataFrame], **changes: Any) -> str:
    return " | ".join(note["title"] for note in notes(tables, [card(**changes)]))


def test_a_note_needs_readings_that_it_speaks_about():
    assert notes({}, [card()]) == []
    assert notes({"stream": frames()["stream"]}, [card()]) == []
    assert "λ < 1" in titles(frames()) and "sinks, not the place" in titles(frames())


def test_the_contraction_note_gives_the_share_and_the_largest():
    tables = frames()
    half = np.arange(len(tables["spectrum"])) % 2
    tables["spectrum"] = tables["spectrum"].assign(contraction=np.where(half, 0.5, 1.75))
    note = next(n for n in notes(tables, [card()]) if n["title"].startswith("λ"))
    assert "1 or more in 50 % of the readings, at most 1.75" in note["text"]
    below = (tables["gain"]["factor"].dropna() < 1).mean()
    assert f"in {100 * below:.3g} % of the layers" in note["text"]


def test_the_sink_note_appears_only_with_leaking_rows():
    assert "below 1" not in titles(frames())
    tables = frames()
    tables["spectrum"] = tables["spectrum"].assign(row_sum_min=0.2, norm=0.68)
    assert "lowest 0.68" in " ".join(note["text"] for note in notes(tables, [card()]))


def prenorm(tables: dict[str, pd.DataFrame], tokens: int) -> str:
    found = notes(tables, [card(context=4 * tokens, tokens=[2, tokens])])
    return next(note["text"] for note in found if "pre-norm bound" in note["title"])


def test_the_prenorm_note_counts_vacuous_bounds():
    heads = len(frames()["querykey"])
    assert f"{heads} of {heads} heads here even that is vacuous" in prenorm(frames(), 256)
    assert "vacuous" not in prenorm(frames(), 1024)


def test_the_prenorm_note_counts_heads_above_the_printed_form():
    tables = frames()
    assert "exceed it" not in prenorm(tables, 256)
    heads = len(tables["querykey"])
    tables["querykey"] = tables["querykey"].assign(prenorm_printed=1.104)
    assert f"{heads} of {heads} heads exceed it" in prenorm(tables, 256)


def feedforward(**columns: Any) -> str:
    """The note on feed-forward layers, all of whose readings have these columns."""
    tables = frames()
    tables["gain"] = tables["gain"].assign(**columns)
    found = notes(tables, [card()])
    return next((n["text"] for n in found if "every feed-forward layer" in n["title"]), "")


def test_the_note_on_theorem_3_says_nothing_of_layers_that_it_covers():
    assert feedforward(bound=1.0) == ""  # as reports were before the column
    assert feedforward(bound=1.0, ranged=False) == ""


def test_the_note_on_theorem_3_says_whose_bound_a_gated_layer_has():
    text = feedforward(bound=6.0, measured=2.0, ranged=True)
    assert "the bound of Theorem 3 does not cover it" in text and "is our own" in text
    assert "3 times what is measured" in text
    assert "without a bound" not in text


def test_the_note_on_theorem_3_tells_a_layer_without_any_bound():
    text = feedforward(bound=np.nan, ranged=False)
    assert "stands without a bound" in text and "our own" not in text


def test_the_note_on_theorem_3_tells_both_where_models_have_both():
    half = np.arange(len(frames()["gain"])) % 4 < 2
    text = feedforward(bound=np.where(half, 6.0, np.nan), ranged=half)
    assert "our own" in text and "stands without a bound" in text
