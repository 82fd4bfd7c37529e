"""The page of an evaluation: each score with its interval beside what a guess scores.

The content is the dict that `results.json` holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerlab.recipes import toml
from layerlab.records.json_values import Json, Record
from layerlab.report.i18n.language import ENGLISH, Label, label, labels
from layerlab.report.pages.adaptation_tables import incomplete, table
from layerlab.report.pages.evaluation_tasks import (
    explain_verdicts,
    few_shot,
    group_table,
    metrics,
    verdict,
    with_normalized,
)
from layerlab.report.pages.shell import fill_page
from layerlab.report.views import command
from layerlab.report.views.forest_plot import format_signed

_STYLES = ("page.css", "comparison.css")
PAGE = "report.html"
ROWS = 400
# Columns of several tables.
SCORE, INTERVAL, QUESTIONS = labels("score", "95 % interval", "questions")
ABSTAINED = label("no answer")
HEAD = (
    *("", SCORE, label("verdict"), INTERVAL, label("chance"), QUESTIONS, ABSTAINED),
    label("few-shot"),
)
PLAIN = label(
    "In percentage points, question by question; a metric that is no share, and has its name in "
    "brackets, is in its own unit. Of forgetting, above zero is lost."
)
# Differences that are of no benchmark.
MEANS = ("domain mean", "general mean", "forgetting")
# What the mean of a benchmark is taken over.
PARTS = (
    *labels("part", "parts", "subject", "subjects", "benchmark", "benchmarks", "level", "kind"),
    *labels("category", "group", "{benchmark}, level {section}: {arm}"),
    *labels("{benchmark}, kind {section}: {arm}", "{benchmark}, category {section}: {arm}"),
)


def render(content: Mapping[str, Any], lang: str = ENGLISH) -> str:
    """Render the whole page of an evaluation.

    Raises:
        UserError: there is no page in this language.
    """
    return fill_page(
        "score.html",
        _STYLES,
        lang,
        content=content,
        facts=list(_facts(content)),
        forests=list(_forests(_shown_rows(content))),
        sections=list(_sections(content)),
        models=_models(content),
        names=[one["arm"] for one in content["arms"]],
        options=toml.write_toml(content["options"]),
        command=command.evaluate(content),
        most=ROWS,
    )


def format_share(score: Any, error: Any) -> str | None:
    """Format a share of one in percent beside its standard error.

    Example:
        >>> format_share(0.25, 0.0202), format_share(0.25, None), format_share(0.0, 0.0)
        ('25.00 ± 2.02', '25.00', '0.00')
    """
    if score is None:
        return None
    return f"{100 * score:.2f}" + ("" if not error else f" ± {100 * error:.2f}")


def format_score(row: Record) -> str | None:
    """Format a score beside its standard error; "not finite" where its logits were unsound."""
    if row.get("lost"):
        return label("not finite")
    return incomplete(row) or format_share(row["score"], row["error"])


def span(row: Record) -> str | None:
    """Return the 95 % interval of a score in percent; None where there is none.

    Example:
        >>> span({"low": 0.0, "high": 0.65762})
        '0.0 to 65.8'
    """
    low, high = row.get("low"), row.get("high")
    return (
        None
        if low is None or high is None or row.get("lost")
        else Label(f"{100 * low:.1f} to {100 * high:.1f}")
    )


def _facts(content: Record) -> Iterable[tuple[str, Any]]:
    first = content["arms"][0]["arm"]
    asked = [row for row in content["subjects"] if row["arm"] == first]
    yield label("Models") if len(content["arms"]) > 1 else label("Model"), len(content["arms"])
    if asked:
        yield label("Benchmarks"), len({row["benchmark"] for row in asked})
    if tasks := [row for row in content.get("tasks", ()) if row["arm"] == first]:
        yield label("Tasks of lm-eval"), len(tasks)
    yield label("Questions to each"), sum(row["n"] for row in [*asked, *tasks])


def _shown_rows(content: Record) -> list[Record]:
    """Return the rows whose scores are drawn: benchmarks, and shares of tasks of lm-eval."""
    shares = [row for row in metrics(content.get("tasks", ())) if row["share"]]
    return [*content["benchmarks"], *shares]


def _forests(rows: Sequence[Record]) -> Iterable[Json]:
    """Yield the forest plot of each benchmark, with a line for every model."""
    for title in dict.fromkeys(row["title"] for row in rows):
        lines = [_line(row) for row in rows if row["title"] == title]
        yield {"title": title, "lines": lines}


def _line(row: Record) -> Json:
    score, chance = row["score"], row.get("chance")
    low, high = (
        None if row.get(end) is None or row.get("lost") else _place(row[end])
        for end in ("low", "high")
    )
    return {
        "arm": row["arm"],
        "n": row["n"],
        "score": format_score(row),
        "span": span(row),
        "verdict": verdict(row),
        "at": None if row.get("lost") else _place(score),
        "low": None if high is None else low,
        "width": None if low is None or high is None else round(high - low, 2),
        "chance": None if chance is None else _place(chance),
    }


def _place(share: float) -> float:
    """Return the place of a share on a scale from 0 to 100; negative values are set to 0."""
    return round(100 * min(1.0, max(0.0, share)), 2)


def _sections(content: Record) -> Iterable[Json]:
    found = [
        ("averages", label("Averages"), [_benchmarks(content), _groups(content), *_tasks(content)]),
        (
            "published",
            label("Published tables"),
            list(_list_published(content.get("published", ()))),
        ),
        (
            "compared",
            label("Against another run"),
            [_differences("compared", content.get("compared"))],
        ),
        ("precision", label("What a precision costs"), _precision(content.get("precision", ()))),
        ("parts", label("Parts of benchmarks"), [_parts(content), *_subjects(content)]),
    ]
    for name, title, tables in found:
        if kept := [one for one in tables if one["rows"]]:
            yield {"id": name, "title": title, "tables": kept}


def _benchmarks(content: Record) -> Json:
    rows = [
        [
            f"{row['title']}: {row['arm']}",
            format_score(row),
            verdict(row),
            span(row),
            format_share(row.get("chance"), None),
            row["n"],
            format_share(row.get("abstained"), None),
            few_shot(row.get("shots")),
        ]
        for row in with_normalized(content["benchmarks"])
    ]
    formulas = _formulas(content["benchmarks"], "title")
    hint = " ".join(filter(None, [formulas, explain_verdicts(content["benchmarks"])]))
    return table("benchmarks", label("Benchmarks"), HEAD, rows, hint)


def _tasks(content: Record) -> Iterable[Json]:
    """Yield the tasks of lm-eval with all their metrics, and the means of their groups."""
    found = list(metrics(content.get("tasks", ())))
    rows = [
        [
            f"{row['title']}: {row['arm']}",
            format_score(row) if row["share"] else row["value"],
            verdict(row),
            span(row) if row["share"] else None,
            format_share(row["chance"], None),
            row["n"],
            format_share(row["abstained"], None),
            few_shot(row["shots"]),
        ]
        for row in found
    ]
    yield table("tasks", label("Tasks of lm-eval"), HEAD, rows, explain_verdicts(found) or "")
    yield group_table(content.get("task_groups", ()), format_score, span)


def _groups(content: Record) -> Json:
    rows = [
        [f"{row['group']}: {row['arm']}", format_score(row), span(row), row["n"]]
        for row in content["groups"]
    ]
    head = ("", SCORE, INTERVAL, QUESTIONS)
    hint = _formulas(content["groups"], "group")
    return table("groups", label("Means of the source's groups"), head, rows, hint)


def _formulas(rows: Iterable[Record], name: str) -> str:
    """Describe how each average is taken, once for all models."""
    found = dict.fromkeys(f"{row[name]}: {row['formula']}." for row in rows)
    return " ".join(["In percent, with standard errors and 95 % intervals.", *found])


def _parts(content: Record) -> Json:
    rows = [
        [
            Label(f"{row['benchmark']}, {row['by']} {row['section']}: {row['arm']}"),
            format_score(row),
            span(row),
            row["n"],
        ]
        for row in content["sections"]
    ]
    return table(
        "sections",
        label("Levels, kinds, categories"),
        ("", SCORE, INTERVAL, QUESTIONS),
        rows,
    )


def _subjects(content: Record) -> Iterable[Json]:
    """Yield a folded table for every benchmark of several subjects, as some have many."""
    titles = {row["benchmark"]: row["title"] for row in reversed(content["benchmarks"])}
    head = ("", SCORE, INTERVAL, QUESTIONS, ABSTAINED)
    for number, (name, title) in enumerate(reversed(titles.items())):
        rows = [row for row in content["subjects"] if row["benchmark"] == name]
        count = len({row["subject"] for row in rows})
        cells = [
            [
                f"{row['called']}: {row['arm']}",
                format_score(row),
                span(row),
                row["n"],
                format_share(row["abstained"], None),
            ]
            for row in rows
        ]
        found = table(f"subjects-{number}", Label(f"Subjects of {title}"), head, cells)
        heading = f"{title}: 1 subject" if count == 1 else f"{title}: {count} subjects"
        yield {**found, "folded": Label(heading)}


def _list_published(rows: Sequence[Record]) -> Iterable[Json]:
    for number in dict.fromkeys(row["table"] for row in rows):
        inside = [row for row in rows if row["table"] == number]
        names = list(inside[0]["cells"])
        cells = [
            [row["model"], Label(row["from"]), *(_cell(row["cells"].get(name)) for name in names)]
            for row in inside
        ]
        title = Label(f"Table {number} of {inside[0]['source']}: {inside[0]['title']}")
        yield table(f"published-{number}", title, (label("model"), label("from"), *names), cells)


def _cell(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _differences(name: str, rows: Iterable[Record] | None) -> Json:
    rows = list(rows or ())
    cells = [
        [
            (Label if row["title"] in MEANS else str)(f"{row['title']}: {row['arm']}"),
            Label(row["against"]),
            incomplete(row)
            if row["difference"] is None
            else format_signed(_scale(row) * row["difference"]),
            _scale(row) * row["error"] if row["error"] else None,
            row["n"],
        ]
        for row in rows
    ]
    head = (*labels("", "against", "difference", "standard error"), QUESTIONS)
    hint = label("In percentage points, question by question; of forgetting, above zero is lost.")
    if any(_scale(row) == 1 for row in rows):
        hint = PLAIN
    return table(name, label("Differences"), head, cells, hint)


def _scale(row: Record) -> int:
    """Return by what a difference is multiplied: only shares are told in percent."""
    return 100 if row.get("share", True) else 1


def _precision(rows: Sequence[Record]) -> list[Json]:
    read = [
        [row["arm"], row["perplexity"], row["nats_per_token"], row["tokens"]]
        for row in rows
        if "perplexity" in row
    ]
    head = labels("", "perplexity", "nats per token", "tokens")
    perplexities = table("perplexity", label("On the built-in sample"), head, read)
    return [_differences("cost", (row for row in rows if "title" in row)), perplexities]


def _models(content: Record) -> Json:
    keys = ("family", "parameters", "context", "dtype", "computed", "weights_hash")
    arms = [
        {**arm, "computed": arm.get("precision") or arm.get("dtype")} for arm in content["arms"]
    ]
    rows = [[arm["arm"], *(arm.get(key) or None for key in keys)] for arm in arms]
    head = (
        *labels("", "family", "parameters", "context", "weights", "computed in"),
        label("hash of the weights"),
    )
    return table("models", label("Models"), head, rows)
