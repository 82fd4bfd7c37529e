"""The tables of the page of an adaptation: what was read, changed, learned and asked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.i18n.language import Label, label, labels
from layerlab.report.views.forest_plot import format_signed

# Kinds of texts and tests, behind their names; stages; and why documents are left out.
NAMED = (
    *labels("domain", "general", "{name} (domain)", "{name} (general)"),
    *labels("{name} (domain, held out)", "{name} (general, held out)"),
    *labels("{title} (domain, %)", "{title} (general, %)", "{title} (bits per byte)"),
    *labels("domain text", "general text", "{count} documents", "{count} seeds"),
    *labels("domain mean: {arm}", "general mean: {arm}", "forgetting: {arm}"),
    *labels("incomplete ({parts} of {whole})", "base", "pretrain", "tune", "embedding"),
    *labels("vocabulary", "clean", "evaluate", "contamination"),
)
REASONS = (
    *labels("{count} too long", "{count} too short", "{count} broken", "{count} symbols"),
    *labels("{count} exact duplicate", "{count} near duplicate", "{count} repetition"),
)


def incomplete(row: Mapping[str, Any]) -> Label | None:
    """Return what stands in place of an average that lacks parts; None where it lacks none.

    Example:
        >>> str(incomplete({"complete": False, "parts": 1, "whole": 11}))
        'incomplete (1 of 11)'
    """
    if row.get("complete", True):
        return None
    return Label(f"incomplete ({row.get('parts')} of {row.get('whole')})")


def sections(content: Mapping[str, Any], pictures: int) -> list[Json]:
    """Return the parts of the page in their order; empty ones are left out.

    Args:
        pictures: that there are of the curves.
    """
    found = [
        ("scores", label("Before and after"), [_scores(content), *_differences(content)], []),
        ("curves", label("Curves and forgetting"), [_changes(content)], list(range(pictures))),
        (
            "vocabulary",
            label("The vocabulary"),
            [*vocabularies(content), *_embeddings(content)],
            [],
        ),
        (
            "read",
            label("Data"),
            [_texts(content), _read(content), _tune(content), *_searches(content)],
            [],
        ),
    ]
    return [
        {"id": name, "title": title, "tables": kept, "pictures": drawn}
        for name, title, tables, drawn in found
        if (kept := [one for one in tables if one["rows"]]) or drawn
    ]


def table(name: str, title: str, head: Sequence[str], rows: Any, hint: str = "") -> Json:
    """Return a table as `grid.html` draws it.

    Args:
        name: a word for its id.
        rows: their cells, the first of which heads the row.
    """
    return {"id": f"table-{name}", "title": title, "head": head, "rows": list(rows), "hint": hint}


def _scores(content: Mapping[str, Any]) -> Json:
    """Return the table of scores: a row for each model, then the rows that explain them."""
    columns = content["table"].get("columns") or []
    tests = content["table"].get("rows") or ()
    head = ["", *(Label(f"{one.get('title')} ({_unit(one)})") for one in tests)]
    cells = [[*(one.get("cells") or ()), *[None] * len(columns)] for one in tests]
    rows: list[list[Any]] = [
        [
            Label(name),
            *(_cell(own[at], one.get("unit")) for one, own in zip(tests, cells, strict=True)),
        ]
        for at, name in enumerate(columns)
    ]
    beside = {
        label("a guess"): [
            None if one.get("chance") is None else f"{100 * one['chance']:.1f}" for one in tests
        ],
        label("questions (documents)"): [_span(own, "n") for own in cells],
        label("too long to be asked"): [_span(own, "too_long") for own in cells],
    }
    if rows:
        rows += [[name, *found] for name, found in beside.items() if any(found)]
    return table("scores", label("Scores"), head, rows, _hint(tests) if rows else "")


def _unit(one: Mapping[str, Any]) -> str:
    return f"{one.get('kind')}, %" if one.get("unit") == "score" else str(one.get("unit"))


def _hint(tests: Iterable[Mapping[str, Any]]) -> str:
    sentence = (
        "Of benchmarks the official average in percent, with its 95 % interval in brackets, or "
        "beside its standard error over questions; of text bits per byte, lower is better, beside "
        "its standard error over documents."
    )
    alone = [
        str(one.get("title"))
        for one in tests
        if one.get("unit") != "score" and any(map(_single, one.get("cells") or ()))
    ]
    return f"{sentence} {lonely(alone)}" if alone else sentence


def lonely(titles: Sequence[str]) -> str:
    """Explain why some texts have no standard error."""
    sentence = f"One document of {' and '.join(titles)} is held out: one has no standard error"
    return f"{sentence}."


def _single(cell: Any) -> bool:
    if not isinstance(cell, Mapping) or cell.get("score") is None:
        return False
    return cell.get("error") is None and cell.get("n") == 1


def _span(cells: Iterable[Any], name: str) -> str | None:
    """Return a count that all models share, or its least and largest value."""
    found = [one[name] for one in cells if isinstance(one, Mapping) and one.get(name) is not None]
    if not found:
        return None
    ends = sorted({min(found), max(found)})
    return f"{ends[0]:,}" if len(ends) == 1 else Label(f"{ends[0]:,} to {ends[1]:,}")


def _cell(cell: Any, unit: Any) -> str | None:
    if not isinstance(cell, Mapping) or cell.get("score") is None:
        return None
    scale, digits = (100, 1) if unit == "score" else (1, 3)
    error, low, high = (cell.get(name) for name in ("error", "low", "high"))
    score = f"{scale * cell['score']:.{digits}f}"
    if low is not None and high is not None:
        return f"{score} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
    return f"{score} ± {scale * error:.{digits}f}" if error else score


def _differences(content: Mapping[str, Any]) -> list[Json]:
    """Return the table of what changed, and a folded one of what stayed as in the base."""
    rows: dict[bool, list[Any]] = {True: [], False: []}
    for one in content["differences"]:
        same = one.get("difference") == 0 and not one.get("error")
        rows[same].append(
            [
                Label(f"{one.get('title')}: {name_model(one)}"),
                incomplete(one) or format_signed(_percent(one.get("difference"))),
                _percent(one.get("error")),
                one.get("n"),
            ]
        )
    hint = "In percentage points, question by question; of forgetting, above zero is lost."
    head = labels("", "difference to the base", "standard error", "questions")
    moved = table("differences", label("Against the base"), head, rows[False], hint)
    still = table("unchanged", label("Against the base, without any change"), head, rows[True])
    return [moved, {**still, "folded": Label(f"{len(rows[True])} without any change")}]


def name_model(one: Mapping[str, Any]) -> str:
    """Name the model that a row is about: after which stage, of which arms."""
    return f"{one.get('after')} ({', '.join(map(str, one.get('arms') or ()))})"


def _percent(value: Any) -> float | None:
    return 100 * value if isinstance(value, int | float) else None


def _changes(content: Mapping[str, Any]) -> Json:
    rows = [
        [
            Label(f"{one.get('arm')}, {one.get('kind')} text"),
            Label(one.get("against") or ""),
            one.get("before"),
            one.get("after"),
            format_signed(one.get("value")),
            format_signed(one.get("low")),
            format_signed(one.get("high")),
            Label(f"{one.get('n')} {one.get('over')}"),
        ]
        for one in content["changes"]
    ]
    head = labels("", "against", "before", "after", "change", "low", "high", "interval over")
    hint = "Bits per byte of held-out text; the change of general text is the forgetting."
    return table("changes", label("What was learned and forgotten"), head, rows, hint)


def vocabularies(content: Mapping[str, Any]) -> Iterable[Json]:
    """Yield a table of what each proof found in each set of texts."""
    for number, one in enumerate(content["vocabulary"]):
        rows = [
            [
                Label(each.get("name") or ""),
                _of(each, "base", "texts"),
                _of(each, "base", "tokens"),
                _of(each, "new", "tokens"),
                each.get("ratio"),
                _of(each, "new", "tokens_per_character"),
                each.get("changed"),
                each.get("longer"),
                each.get("broken"),
            ]
            for each in one.get("texts") or ()
        ]
        proof = "holds" if one.get("holds") else "does not hold"
        hint = (
            f"The proof {proof}: {one.get('added')} entries added, {one.get('removed')} removed, "
            f"{len(one.get('unreachable') or ())} out of reach, {one.get('unused')} unused, "
            f"{len(one.get('partial') or ())} that are no whole characters"
        )
        head = (
            *labels("text", "pieces", "tokens before", "after", "ratio", "tokens a character"),
            *labels("cut anew", "longer", "not back"),
        )
        yield table(f"proof-{number}", label("Proof of the vocabulary"), head, rows, f"{hint}.")


def _embeddings(content: Mapping[str, Any]) -> Iterable[Json]:
    for number, one in enumerate(content["embedding"]):
        names = list(one.get("before") or {})
        rows = [[label("base tokenizer"), None, *(_bits(one["before"], name) for name in names)]]
        rows += [
            [way.get("input"), way.get("head"), *(_bits(way.get("bits"), name) for name in names)]
            for way in one.get("ways") or ()
        ]
        hint = "Bits per byte of held-out text before any training; the last row is what stayed."
        head = (*labels("input embedding", "output head"), *map(Label, names))
        yield table(f"embedding-{number}", label("How new tokens begin"), head, rows, hint)


def _bits(given: Any, name: str) -> Any:
    return _of(given, name, "bits_per_byte") if isinstance(given, Mapping) else None


def _of(given: Mapping[str, Any], name: str, inner: str) -> Any:
    found = given.get(name)
    return found.get(inner) if isinstance(found, Mapping) else None


def _texts(content: Mapping[str, Any]) -> Json:
    rows = [
        [
            Label(f"{one.get('name')} ({one.get('kind')})"),
            one.get("documents"),
            one.get("bytes"),
            one.get("kept"),
            one.get("kept_bytes"),
            Label(
                "; ".join(
                    f"{each.get('documents')} {why}"
                    for why, each in (one.get("removed") or {}).items()
                )
            ),
        ]
        for one in content["texts"]
    ]
    head = labels("text", "documents", "bytes", "kept", "bytes kept", "left out")
    return table("texts", label("Texts"), head, rows)


def _read(content: Mapping[str, Any]) -> Json:
    rows = [
        [
            Label(
                f"{run.get('arm')}, seed {run.get('seed')}: {one.get('source')} ({one.get('kind')})"
            ),
            one.get("tokens"),
            one.get("passes"),
        ]
        for run in content["pretrain"]
        for one in run.get("sources") or ()
    ]
    head = labels("source", "tokens", "passes")
    return table("read", label("Read in continued pretraining"), head, rows)


def _tune(content: Mapping[str, Any]) -> Json:
    rows = [
        [
            f"{', '.join(map(str, run.get('arms') or ()))}: {name}",
            *(one.get(key) for key in ("rows", "held", "turns", "tokens", "answers", "passes")),
            (run.get("before") or {}).get(name),
            (run.get("after") or {}).get(name),
        ]
        for run in content["tune"]
        for name, one in (run.get("sources") or {}).items()
    ]
    head = (
        *labels("source", "rows", "held out", "turns", "tokens", "of the assistant", "passes"),
        *labels("nats before", "nats after"),
    )
    hint = "Nats per token of held-out answers."
    return table("tuned", label("Read in instruction tuning"), head, rows, hint)


def _searches(content: Mapping[str, Any]) -> Iterable[Json]:
    for number, one in enumerate(content["contamination"]):
        rows = [
            [name, *(count.get(key) for key in ("questions", "short", "common", "touched", "held"))]
            for name, count in (one.get("benchmarks") or {}).items()
        ]
        head = (
            *labels("benchmark", "questions", "too short to tell", "too common to tell"),
            *labels("touched", "held"),
        )
        hint = (
            "Questions that share a run of 13 units with what is learned from are touched; those "
            "of which 80 % is there are held. Too common are those in which every run is the "
            "wording of many."
        )
        yield table(f"search-{number}", label("Contamination"), head, rows, hint)


def stages(content: Mapping[str, Any]) -> Json:
    """List every stage with its folder and duration."""
    rows = [
        [
            Label(one.get("stage") or ""),
            label("finished") if one.get("finished") else label("not finished"),
            None if one.get("seconds") is None else round(one["seconds"], 1),
            one.get("key"),
        ]
        for one in content["stages"]
    ]
    return table("stages", label("Stages"), labels("stage", "", "seconds", "folder"), rows)
