"""The saliency of a prompt in a terminal: what each model predicts, and what that hangs on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from layerlab.console import tables
from layerlab.report.findings.extremes import figure, percent
from layerlab.report.views import text
from layerlab.report.views.inspection import saliency

NAME = "saliency"
MOST = 3
# Characters of a token; those of Chinese take two columns each.
LONG = 10
SCORE = "l1"
HEADINGS = ("model", "predicted", "probability", "hangs on", "position", "share")
LEGEND = "Share: of the L1 score at the embedding; scores of other layers are on the page."


def saliency_answers(content: Mapping[str, Any], rows: pd.DataFrame | None) -> list[RenderableType]:
    """Return each model's prompt, answer and tokens with the largest scores.

    Args:
        rows: the frame of the measure.
    """
    stored = content["pictures"].get(NAME, {})
    asked = {
        str(model["name"]): stored[model["name"]]
        for model in content["models"]
        if saliency.drawable(stored.get(model["name"]))
    }
    if rows is None or not asked:
        return []
    measure = next(one for one in content["measures"] if one["name"] == NAME)
    found = [row for name, one in asked.items() for row in _rows(name, one, _line(rows, name))]
    table = tables.grid(HEADINGS, found, wrapped=HEADINGS[:2] + HEADINGS[3:4])
    return [
        Text(),
        tables.plain(measure["title"], "bold"),
        *(tables.plain(f"{name}: {_question(one)}") for name, one in asked.items()),
        *(tables.plain(text.prose(note), "yellow") for note in measure["notes"]),
        Text(),
        table,
        tables.plain(LEGEND, "dim"),
    ]


def _question(picture: Mapping[str, Any]) -> str:
    foil = picture["foil"]
    other = f", less that of {_describe(foil)}" if foil else ""
    return (
        f"{text.prose(str(picture['of']), 40)} of {_describe(picture['target'])}{other}, after "
        f"{picture['position'] + 1} tokens"
    )


def _describe(word: Mapping[str, Any]) -> str:
    return f"{_token(word)} (probability {figure(word['probability'])}, rank {word['rank']})"


def _token(word: Mapping[str, Any]) -> str:
    return text.token(str(word["token"]), LONG)


def _line(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one model's tokens at the embeddings, the largest score first."""
    own = rows[rows["model"] == name]
    return own[own["layer"] == own["layer"].min()].sort_values(SCORE, ascending=False)


def _rows(name: str, picture: Mapping[str, Any], line: pd.DataFrame) -> Iterator[Sequence[str]]:
    predictions = picture.get("predictions") or [picture["prediction"]]
    likely = [(_token(one), figure(one["probability"])) for one in predictions[:MOST]]
    total = float(line[SCORE].sum())
    tokens = dict(zip(picture["positions"], picture["tokens"], strict=True))
    sources = [
        (_whole(tokens, position), str(position), percent(score / total) if total > 0 else "none")
        for position, score in zip(line["position"][:MOST], line[SCORE][:MOST], strict=True)
    ]
    names = [text.prose(name, 80)]
    for owner, left, right in zip_longest(names, likely, sources, fillvalue=None):
        yield (str(owner or ""), *_pair(left, 2), *_pair(right, 3))


def _pair(cells: Iterable[str] | None, size: int) -> tuple[str, ...]:
    return ("",) * size if cells is None else tuple(cells)


def _whole(tokens: Mapping[int, str], position: int) -> str:
    """Return a token, completed where it is only a part of a character."""
    word, following = str(tokens[position]), position + 1
    while word and not word.replace(text.PART, "") and following in tokens:
        ending = str(tokens[following])
        if ending.replace(text.PART, ""):
            word += ending
        following += 1
    return text.token(word, LONG)
