from typing import Any

import numpy as np
import pandas as pd

from layerlab.report.results.source_notes import notes
from tests.report.reading import card, frames


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
    assert "norm of attention can fall below 1" in titles(frames(), sinks=True)
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


def test_the_note_on_theorem_3_appears_only_for_sublayers_without_a_bound():
    assert "every feed-forward layer" in titles(frames())
    tables = frames()
    tables["gain"] = tables["gain"].assign(bound=1.0)
    assert "every feed-forward layer" not in titles(tables)
