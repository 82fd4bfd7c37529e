"""From results of tasks to those of benchmarks, of the source's groups, and of parts of each."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.harness.fewshot import Shots
from layerlab.evaluation.lawbench.tasks import TASKS
from layerlab.evaluation.metrics.estimates import Mean, with_interval
from layerlab.evaluation.results.averages import (
    GROUPS,
    Average,
    group_means,
    means_by_heading,
    official,
    weighted_mean,
)
from layerlab.records.json_values import Record

MeansByPart = dict[str, Mean]
# LawBench's own scorer of proofreading needs programs of its own; ours counts edits otherwise.
APPROXIMATE = {"lawbench": ("2-1",)}


def benchmark_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the official average of every benchmark, by model, in the order of asking."""
    return [
        row
        for (arm, name), found in _group(records, "arm", "benchmark").items()
        for row in _of_benchmark(arm, BENCHMARKS[name], found)
    ]


def _of_benchmark(
    arm: str, benchmark: Benchmark, records: Sequence[Record]
) -> Iterator[dict[str, Any]]:
    parts = _parts(records)
    about = {
        "arm": arm,
        "benchmark": benchmark.name,
        "title": benchmark.title,
        "group": benchmark.group,
        "metric": benchmark.metric,
    }
    yield {
        **about,
        **_value(official(benchmark.name, parts)),
        "chance": _chance(benchmark, records),
        "abstained": _pool(records, "abstained"),
        "shots": _shots(records),
        "limited": next((one["limited"] for one in records if one["limited"]), None),
        "unsound": sum(one.get("unsound") or 0 for one in records),
        "lost": _is_lost(records),
        "scoring": records[0]["scoring"],
        "cot": records[0]["cot"],
        "other": _others(records),
        "acc_norm": _average_normalized(benchmark, records),
        "approximate": False,
    }
    without = APPROXIMATE.get(benchmark.name, ())
    rest = {name: part for name, part in parts.items() if name not in without}
    if rest and len(rest) < len(parts):
        title = f"{benchmark.title} without {', '.join(without)}"
        found = official(benchmark.name, rest, without=without)
        lost = _is_lost([one for one in records if one["subject"] not in without])
        yield {**about, **_value(found), "title": title, "without": list(without), "lost": lost}


def unsound_remarks(benchmarks: Iterable[Record]) -> list[str]:
    """Return a line for every model and benchmark at which logits were NaN or infinite."""
    return [
        f"{row['arm']}: {row['title']}: NaN or infinite logits at {row['unsound']:,} of "
        f"{row['n']:,} questions; they count as wrong, and the score says nothing of the model: "
        "look for NaN in its weights, or type --dtype float32"
        for row in benchmarks
        if row.get("unsound") and whole(row)
    ]


def group_rows(benchmarks: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the means of the source's groups and of all general benchmarks, by model.

    A mean over part of its benchmarks is no score: it stands there as incomplete.
    """
    found: list[dict[str, Any]] = []
    for (arm,), rows in _group([one for one in benchmarks if whole(one)], "arm").items():
        parts = {str(row["benchmark"]): _mean(row) for row in rows}
        means = group_means(parts)
        special = {name: one.group for name, one in BENCHMARKS.items() if one.group not in GROUPS}
        means |= means_by_heading(parts, special)
        found += [
            {"arm": arm, "group": name, **_score(average), "lost": _is_lost(_inside(rows, name))}
            for name, average in means.items()
            if average.parts
        ]
    return found


def section_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the means of a benchmark's named parts: levels, kinds, categories."""
    found: list[dict[str, Any]] = []
    for (arm, name), rows in _group(records, "arm", "benchmark").items():
        benchmark, parts = BENCHMARKS[name], _parts(rows)
        for kind, headings in _headings(benchmark).items():
            averages = _add_heading(benchmark, parts, headings)
            its = _by(headings)
            found += [
                {"arm": arm, "benchmark": name, "by": kind, "section": section}
                | {**_value(one), "lost": _is_lost([row for row in rows if its(row) == section])}
                for section, one in averages.items()
                if one.parts and len(averages) > 1
            ]
    return found


def left_out_line(row: Record) -> str:
    """Describe which benchmark was not asked, and why.

    Example:
        >>> left_out_line({"title": "CSL", "reason": "CSL is not here"})
        'CSL is not here'
    """
    title, reason = str(row["title"]), str(row["reason"])
    return reason if reason.startswith(f"{title} ") else f"{title}: {reason}"


def whole(row: Record) -> bool:
    """Return whether a row is of a benchmark with all its parts, not of one that lacks some."""
    return not row.get("without")


def _headings(benchmark: Benchmark) -> dict[str, dict[str, str]]:
    category = {one.name: one.category for one in benchmark.subjects}
    if benchmark.name != "lawbench":
        return {"category": category}
    return {"level": category, "kind": {name: task.kind for name, task in TASKS.items()}}


def _add_heading(
    benchmark: Benchmark, parts: MeansByPart, headings: Mapping[str, str]
) -> dict[str, Average]:
    """Return the averages under headings, by the benchmark's own rule."""
    if benchmark.average != "weighted":
        return means_by_heading(parts, headings)
    shares = {name: float(part.n) for name, part in parts.items()}
    return {
        heading: weighted_mean(
            parts, shares, [name for name, its in headings.items() if its == heading]
        )
        for heading in dict.fromkeys(headings.values())
    }


def _group(records: Iterable[Record], *names: str) -> dict[tuple[str, ...], list[Record]]:
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(str(record[name]) for name in names), []).append(record)
    return found


def _parts(records: Iterable[Record]) -> MeansByPart:
    return {str(one["subject"]): _mean(one) for one in records}


def _mean(row: Record) -> Mean:
    return Mean(row["score"], row["error"], row["n"], row.get("effective_n"))


def _inside(rows: Iterable[Record], group: str) -> list[Record]:
    groups = GROUPS if group == "general" else (group,)
    return [row for row in rows if row["group"] in groups]


def _by(headings: Mapping[str, str]) -> Callable[[Record], str | None]:
    return lambda row: headings.get(str(row["subject"]))


def _is_lost(rows: Iterable[Record]) -> bool:
    """Return whether no question that could be asked was answered with finite logits."""
    rows = list(rows)
    unsound = sum(row.get("unsound") or 0 for row in rows)
    unfit = sum(row["shots"]["unfit"] for row in rows)
    return unsound > 0 and unsound + unfit >= sum(row["n"] for row in rows)


def _value(average: Average) -> dict[str, Any]:
    mean = average.mean
    return {
        "score": None if math.isnan(mean.value) else mean.value,
        "error": mean.error,
        **with_interval(mean),
        "n": mean.n,
        "formula": average.formula,
        "missing": list(average.missing),
        **average.extent(),
    }


def _score(average: Average) -> dict[str, Any]:
    """Return the values of an average, without any score where parts of it are missing."""
    found = _value(average)
    blank = dict.fromkeys(("score", "error", "low", "high", "effective_n"))
    return found if average.official else {**found, **blank}


def _chance(benchmark: Benchmark, records: Sequence[Record]) -> float | None:
    """Return the score of guessing, averaged as the scores are.

    None where nothing is chosen from.
    """
    chances = {str(one["subject"]): Mean(one["chance"] or 0.0, None, one["n"]) for one in records}
    if all(one["chance"] is None for one in records):
        return None
    return official(benchmark.name, chances).mean.value


def _pool(records: Sequence[Record], name: str) -> float | None:
    """Return the mean of a number over all questions of the tasks that report it."""
    with_number = [one for one in records if one[name] is not None]
    total = sum(one["n"] for one in with_number)
    return sum(one["n"] * one[name] for one in with_number) / total if total else None


def _shots(records: Sequence[Record]) -> dict[str, Any]:
    found = [Shots(**one["shots"]) for one in records]
    total = sum(one["n"] for one in records)
    mean = sum(one["n"] * shots.mean for one, shots in zip(records, found, strict=True)) / total
    joined = Shots(
        asked=max(one.asked for one in found),
        mean=mean,
        least=min(one.least for one in found),
        shortened=sum(one.shortened for one in found),
        unfit=sum(one.unfit for one in found),
    )
    return {**vars(joined), "told": joined.summary()}


def _others(records: Sequence[Record]) -> dict[str, float]:
    """Return the further metrics of a benchmark that is one task."""
    if len(records) != 1:
        return {}
    return {
        name: value
        for name, value in records[0]["metrics"].items()
        if name not in ("score", "abstained") and value is not None
    }


def _average_normalized(benchmark: Benchmark, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the average of acc_norm, where options of different length make it another number."""
    if not any(one.get("acc_norm") for one in records):
        return None
    parts = {str(one["subject"]): _mean(one.get("acc_norm") or one) for one in records}
    return _value(official(benchmark.name, parts))
