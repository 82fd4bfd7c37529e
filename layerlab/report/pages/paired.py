"""The page of paired evaluations: each verdict with its test, and every question that flipped.

The content is the dict that `paired.json` holds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from layerlab.records.json_values import Json, Record
from layerlab.report.i18n.language import ENGLISH, Label, label, labels
from layerlab.report.pages.adaptation_tables import table
from layerlab.report.pages.shell import fill_page
from layerlab.report.views.forest_plot import WORDS, format_signed

_STYLES = ("page.css", "comparison.css")
PAGE = "report.html"
# What tests are over, and their names.
SCOPES = labels("all questions", "mean of tasks")
TESTS = labels("exact McNemar test", "exact test over clusters", "paired t-test")
MARGINS = labels("holds", "fails", "not decided", "is not decided")
VERDICTS = (*WORDS, label("no verdict"))
HEAD = (
    *labels("", "verdict", "difference", "95 % interval", "p (Holm)", "score", "baseline"),
    *labels("gained", "lost", "questions", "units", "detectable", "kind of test"),
)
HINT = label(
    "In percent and percentage points where scores are shares. Detectable is the difference that "
    "so many units find in most cases; above 100 there is none."
)
FLIPS = labels("", "flipped", "right answer", "answer", "of the baseline", "question")


def render(content: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of paired evaluations.

    Raises:
        UserError: there is no page in this language.
    """
    return fill_page(
        "paired.html",
        _STYLES,
        lang,
        content=content,
        facts=list(_facts(content)),
        arms=list(_arms(content)),
        models=_models(content),
        names=[one["name"] for one in content["models"]],
    )


def _facts(content: Record) -> Iterator[tuple[str, Any]]:
    first = content["rows"][0]["arm"]
    tasks = [row for row in content["rows"] if row["arm"] == first and row["scope"] == "task"]
    yield label("Models"), len(content["models"])
    yield label("Tasks"), len(tasks)
    yield label("Questions to each"), sum(row["n"] for row in tasks)
    yield label("Tests corrected together"), content["tests"]


def _arms(content: Record) -> Iterator[Json]:
    """Yield what there is of each model: sentences, the table of its tests, what flipped."""
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in content["rows"])):
        rows = [row for row in content["rows"] if row["arm"] == arm]
        flips = [one for one in content["flipped"] if one["arm"] == arm]
        rows_shown = [row for row in rows if row["scope"] != "task" or len(rows) == 1]
        moved = [
            row for row in rows if row["verdict"] in ("better", "worse") and row not in rows_shown
        ]
        yield {
            "id": f"model-{number}",
            "title": arm,
            "said": [row["said"] for row in (*rows_shown, *moved)],
            "tests": _tests(number, content, rows),
            "flips": _flips(number, flips),
        }


def _tests(number: int, content: Record, rows: Iterable[Record]) -> Json:
    percent = f"{100 * content['confidence']:g} %"
    head = tuple(Label(f"{percent} interval") if "interval" in one else one for one in HEAD)
    rows = list(rows)
    if all(row.get("within") is None for row in rows):
        return table(f"tests-{number}", label("Tests"), head, map(_cells, rows), HINT)
    cells = [[*_cells(row), Label(row["within"]) if row["within"] else None] for row in rows]
    return table(f"tests-{number}", label("Tests"), (*head, label("within margin")), cells, HINT)


def _cells(row: Record) -> list[Any]:
    scale = 100 if row["share"] else 1
    low, high = row["low"], row["high"]
    interval = None
    if low is not None and high is not None:
        interval = Label(f"{format_signed(scale * low)} to {format_signed(scale * high)}")
    return [
        row["task"] if row["scope"] in ("task", "group") else Label(row["task"]),
        Label(row["verdict"]),
        format_signed(scale * row["difference"]),
        interval,
        row["holm"],
        scale * row["score"],
        scale * row["against_score"],
        row["gained"],
        row["lost"],
        row["n"],
        row["units"],
        _detectable(row),
        Label(row["test"]),
    ]


def _detectable(row: Record) -> Any:
    if row["detectable"] is None:
        return None
    most = max(row["detectable"])
    return most if not row["share"] else "> 100" if most > 1 else 100 * most


def _flips(number: int, flips: Sequence[Record]) -> Json:
    rows = [
        [
            f"{one['task']} {one['question']}",
            label("gained") if one["right_now"] else label("lost"),
            one["right"],
            one["said"],
            one["against_said"],
            one["text"],
        ]
        for one in flips
    ]
    return table(f"flips-{number}", label("Questions that flipped"), FLIPS, rows)


def _models(content: Record) -> Json:
    rows = [[one["name"], one["folder"], one["tasks"]] for one in content["models"]]
    return table("models", label("Models"), labels("", "folder", "tasks"), rows)
