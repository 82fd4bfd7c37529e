"""Scores for a terminal; what came from outside is never read as markup."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from layerlab.console import tables
from layerlab.console.tables import plain
from layerlab.console.units import difference
from layerlab.evaluation.benchmarks.spec import full_name
from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.metrics.estimates import Mean
from layerlab.evaluation.metrics.guessing import LEVEL
from layerlab.evaluation.results.above_chance import ACCURACIES, count_tests, list_tested
from layerlab.evaluation.results.aggregate import left_out_line
from layerlab.evaluation.results.averages import incomplete
from layerlab.evaluation.results.lm_eval_tasks import expand_metrics, format_group, format_metric
from layerlab.records.index.task_metrics import is_share
from layerlab.records.json_values import Record

Column = tuple[str, Callable[[Record], str]]
WIDE = 100  # from here on a table also says how its averages are taken
LISTED = 6  # of names in a line
ACC_NORM = (
    "acc: share of right answers; acc_norm: the same with likelihoods divided by answer lengths"
)


def render_table(content: Record, width: int, *, subjects: bool = False) -> Group:
    """Render everything that a result holds, arm by arm, and then the remarks on it."""
    return Group(*_parts(content, width, subjects))


def percent(value: float | None, error: float | None = None) -> str:
    """Return a share of one in percent, with its standard error.

    Example:
        >>> percent(0.5, 0.0312), percent(None)
        ('50.00 +- 3.12', '-')
    """
    return "-" if value is None else Mean(value, error, 0).summary()


def format_score(row: Record) -> str:
    """Format a score with its standard error; "not finite" where all logits were unsound.

    An average that lacks parts is "incomplete", and no score.

    Example:
        >>> format_score({"score": 0.0, "error": 0.0, "n": 2, "lost": True})
        'not finite'
    """
    if row.get("lost"):
        return "not finite"
    return incomplete(row) or percent(row["score"], row["error"])


def span(row: Record) -> str:
    """Return the 95 % interval of a score, in percent.

    Example:
        >>> span({"low": 0.0, "high": 0.65762}), span({"score": 1.0})
        ('[0.0, 65.8]', '-')
    """
    low, high = row.get("low"), row.get("high")
    return (
        "-"
        if low is None or high is None or row.get("lost")
        else f"[{100 * low:.1f}, {100 * high:.1f}]"
    )


def grid(
    rows: Iterable[Record],
    columns: Sequence[Column],
    left: Sequence[str] = (),
    width: int | None = None,
) -> RenderableType:
    """Return a table of rows, with numbers aligned to the right.

    Args:
        left: headings of columns of words.
        width: of the terminal: what is wider comes in several tables, each with the first columns
            of words; None leaves it whole.
    """
    names = [name for name, _ in columns]
    cells = ([cell(row) for _, cell in columns] for row in rows)
    if width is None:
        return tables.grid(names, cells, left)
    return tables.grids(names, cells, left, width)


def _parts(content: Record, width: int, subjects: bool) -> Iterator[RenderableType]:
    for arm in content["arms"]:
        rows = [row for row in content["benchmarks"] if row["arm"] == arm["arm"]]
        yield plain(f"{arm['arm']}: {_about(arm)}", "bold")
        if rows:
            yield _benchmarks(rows, width)
            yield Text()
        groups = [row for row in content["groups"] if row["arm"] == arm["arm"]]
        if groups:
            yield grid(groups, _GROUPS, ("mean of", "how"), width)
            yield Text()
        yield from _tasks(content, str(arm["arm"]), width)
        yield from _guessing(content, str(arm["arm"]))
        if subjects:
            yield from _subjects(content, str(arm["arm"]), width)
        sections = [row for row in content["sections"] if row["arm"] == arm["arm"]]
        if sections and (subjects or any(row["benchmark"] == "lawbench" for row in sections)):
            visible = [row for row in sections if subjects or row["benchmark"] == "lawbench"]
            yield grid(visible, _SECTIONS, ("benchmark", "by", "section"), width)
            yield Text()
    if _has_normalized(content):
        yield plain(ACC_NORM, "dim")
        yield Text()
    yield from _precision(content, width)
    yield from _compare(content, width)
    yield from _list_published(content, width)
    yield from _below(content)


def _has_normalized(content: Record) -> bool:
    """Return whether an accuracy is shown whose likelihoods are divided by lengths."""
    measured = (row["metric"] for row in expand_metrics(content.get("tasks", ())))
    return "acc_norm" in measured or any(row.get("acc_norm") for row in content["benchmarks"])


def _about(arm: Record) -> str:
    context = arm["context"] if arm["context"] is not None else "endless"
    precision = arm["precision"] or arm["dtype"]
    return (
        f"{arm['parameters']:,} parameters, context {context}, {precision}; "
        "percent +- standard error"
    )


_BENCHMARKS: tuple[Column, ...] = (
    ("benchmark", lambda row: str(row["title"])),
    ("score", format_score),
    ("95 % interval", span),
    ("chance", lambda row: percent(row.get("chance"))),
    ("n", lambda row: f"{row['n']:,}"),
    ("no answer", lambda row: percent(row.get("abstained"))),
    ("few-shot", lambda row: str(row.get("shots", {}).get("told", "-"))),
)
_HOW: Column = ("how", lambda row: _how(row))
_GROUPS: tuple[Column, ...] = (
    ("mean of", lambda row: str(row["group"])),
    ("score", format_score),
    ("95 % interval", span),
    ("n", lambda row: f"{row['n']:,}"),
    ("how", lambda row: _shorten(str(row["formula"]))),
)
_TASKS: tuple[Column, ...] = (
    ("task", lambda row: str(row["task"])),
    ("metric", lambda row: str(row["metric"])),
    ("score", format_metric),
    ("95 % interval", lambda row: span(row) if is_share(row) else "-"),
    ("chance", lambda row: percent(row["chance"] if row["metric"] in ACCURACIES else None)),
    ("n", lambda row: f"{row['n']:,}"),
    ("no answer", lambda row: percent(row["abstained"])),
    ("few-shot", lambda row: Shots(**row["shots"]).summary()),
)
_TASK_GROUPS: tuple[Column, ...] = (
    ("mean of", lambda row: str(row["group"])),
    ("metric", lambda row: str(row["metric"])),
    ("score", format_group),
    ("95 % interval", lambda row: span(row) if is_share(row) else "-"),
    ("n", lambda row: f"{row['n']:,}"),
    ("how", lambda row: _shorten(str(row["formula"]))),
)
_SECTIONS: tuple[Column, ...] = (
    ("benchmark", lambda row: str(row["benchmark"])),
    ("by", lambda row: str(row["by"])),
    ("section", lambda row: str(row["section"])),
    ("score", format_score),
    ("95 % interval", span),
    ("n", lambda row: f"{row['n']:,}"),
)
_SUBJECTS: tuple[Column, ...] = (
    ("subject", lambda row: full_name(str(row["subject"]), str(row["english"]))),
    ("score", format_score),
    ("95 % interval", span),
    ("n", lambda row: f"{row['n']:,}"),
    ("no answer", lambda row: percent(row["abstained"])),
)
_DIFFERENCES: tuple[Column, ...] = (
    ("model", lambda row: str(row["arm"])),
    ("against", lambda row: str(row["against"])),
    ("what", lambda row: str(row["title"])),
    ("difference", lambda row: _difference(row)),
    ("n", lambda row: f"{row['n']:,}"),
)


def _benchmarks(rows: Sequence[Record], width: int) -> RenderableType:
    if width >= WIDE + 60:
        return grid(rows, (*_BENCHMARKS, _HOW), ("benchmark", "how", "few-shot"), width)
    lines = [plain(f"{row['title']}: {_how(row)}", "dim") for row in rows]
    return Group(grid(rows, _BENCHMARKS, ("benchmark", "few-shot"), width), *lines)


def _how(row: Record) -> str:
    """Describe the average, the scoring, and what else is known of a score."""
    found = [_shorten(str(row["formula"]))]
    if "scoring" in row:
        found.append(f"{row['metric']} by {row['scoring']}" + ", explained" * bool(row["cot"]))
    if row.get("limited"):
        found.append(f"answers of at most {row['limited']} tokens, half of the context")
    if row.get("acc_norm"):
        found.append(f"acc_norm {format_score({**row['acc_norm'], 'lost': row.get('lost')})}")
    found += [f"{name} {value:.4f}" for name, value in row.get("other", {}).items()]
    return "; ".join(found)


def _shorten(formula: str) -> str:
    """Shorten a formula so that it names only the first of many missing parts."""
    head, sign, names = formula.partition("; not run: ")
    listed = names.split(", ")
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return head + sign + ", ".join(listed[:LISTED]) + more


def _tasks(content: Record, arm: str, width: int) -> Iterator[RenderableType]:
    """Yield the tasks of lm-eval, a line for every metric, and the means of their groups."""
    rows = [row for row in content.get("tasks", ()) if row["arm"] == arm]
    if rows:
        yield grid(expand_metrics(rows), _TASKS, ("task", "metric", "few-shot"), width)
        yield Text()
    groups = [row for row in content.get("task_groups", ()) if row["arm"] == arm]
    if groups:
        yield grid(groups, _TASK_GROUPS, ("mean of", "metric", "how"), width)
        yield Text()


def _guessing(content: Record, arm: str) -> Iterator[RenderableType]:
    """Yield lines that name what is above chance, and what cannot be told from guessing."""
    tests = count_tests(content)
    among = f", Holm over {tests} accuracies" if tests > 1 else ""
    how = f"exact one-sided test at {LEVEL:g}{among}"
    lines = [
        plain(f"{head}: {', '.join(names)} ({how})", style)
        for head, style, above in (
            ("Above chance", "", True),
            ("Not above chance", "yellow", False),
        )
        if (names := list_tested(content, arm, above=above))
    ]
    yield from lines
    if lines:
        yield Text()


def _subjects(content: Record, arm: str, width: int) -> Iterator[RenderableType]:
    rows = [row for row in content["subjects"] if row["arm"] == arm]
    for benchmark in dict.fromkeys(row["benchmark"] for row in rows):
        yield plain(str(benchmark), "bold")
        inside = [row for row in rows if row["benchmark"] == benchmark]
        yield grid(inside, _SUBJECTS, ("subject",), width)
        yield Text()


def _precision(content: Record, width: int) -> Iterator[RenderableType]:
    rows = content.get("precision", ())
    if rows:
        yield plain("What a precision costs, over the same questions", "bold")
        wrapped = ("model", "against", "what")
        yield grid([row for row in rows if "title" in row], _DIFFERENCES, wrapped, width)
        for row in rows:
            if "perplexity" in row:
                yield plain(f"{row['arm']}: {_perplexity(row)} ({row['tokens']:,} tokens)")
        yield Text()


def _perplexity(row: Record) -> str:
    if row["perplexity"] is None:
        return "perplexity on the built-in sample is not finite"
    return (
        f"perplexity {row['perplexity']:.4g} on the built-in sample, "
        f"{row['nats_per_token']:.4f} nats per token"
    )


def _compare(content: Record, width: int) -> Iterator[RenderableType]:
    if rows := content.get("compared", ()):
        yield plain("Differences to another run, over the same questions", "bold")
        yield grid(rows, _DIFFERENCES, ("model", "against", "what"), width)
        yield Text()


def _list_published(content: Record, width: int) -> Iterator[RenderableType]:
    rows = content.get("published", ())
    for table in dict.fromkeys(row["table"] for row in rows):
        inside = [row for row in rows if row["table"] == table]
        yield plain(f"Table {table} of {inside[0]['source']}, {inside[0]['title']}", "bold")
        names = list(inside[0]["cells"])
        columns: list[Column] = [
            ("model", lambda row: str(row["model"])),
            ("from", lambda row: str(row["from"])),
            *((name, _cell(name)) for name in names),
        ]
        yield grid(inside, columns, ("model", "from"), width)
        yield Text()


def _cell(name: str) -> Callable[[Record], str]:
    def show(row: Record) -> str:
        value = row["cells"].get(name)
        return "-" if value is None else f"{value:.2f}"

    return show


def _below(content: Record) -> Iterator[Text]:
    for row in content["left_out"]:
        yield plain(f"- left out: {left_out_line(row)}", "yellow")
    for remark in content["remarks"]:
        yield plain(f"- {remark}", "yellow" if "NaN" in remark else "dim")


def _difference(row: Record) -> str:
    if row["difference"] is None:
        return incomplete(row)
    if row.get("share", True):
        error = f" +- {100 * row['error']:.2f}" if row["error"] else ""
        return f"{difference(100 * row['difference'], 2)}{error}"
    error = f" +- {row['error']:.2g}" if row["error"] else ""
    return f"{row['difference'] + 0:+.4g}{error}"
