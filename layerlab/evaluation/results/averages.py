"""Official averages: one rule for every benchmark, in numbers and in words.

| rule | benchmarks | average |
|---|---|---|
| macro | C-Eval, CMMLU, MMLU, AGIEval, FinanceIQ | every subject counts alike, as in OpenCompass |
| weighted | FinEval | every question counts alike |
| lawbench | LawBench | (2 M + 10 U + 8 A) / 20: every task counts alike |

What was not run is never averaged over in silence: it is named, and the average is then not the
official one. A benchmark of one subject is its own average under every rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.metrics.estimates import Mean, combine_means

# Questions of the four parts of FinEval's scored split, as the source weighs them.
FINEVAL: Mapping[str, int] = MappingProxyType(
    {"Accounting": 305, "Certificate": 334, "Economy": 207, "Finance": 305}
)
# Tasks of LawBench at each level.
LAWBENCH: Mapping[str, int] = MappingProxyType(
    {"memorization": 2, "understanding": 10, "applying": 8}
)
WEIGHTED = ", weighted by their questions"
GROUPS = ("examination", "knowledge", "reasoning", "understanding")


@dataclass(frozen=True)
class Average:
    """An average of means, and what it is one of.

    Attributes:
        mean: its value, standard error and number of questions.
        formula: how it was taken, in words.
        parts: how many means it was taken of.
        missing: names of those that it lacks.
    """

    mean: Mean
    formula: str
    parts: int
    missing: tuple[str, ...] = ()

    @property
    def official(self) -> bool:
        """Return whether nothing is missing."""
        return not self.missing

    @property
    def whole(self) -> int:
        """Return of how many means it would be taken if none were missing."""
        return self.parts + len(self.missing)

    def extent(self) -> dict[str, Any]:
        """Return what of the whole is there, as results keep it.

        Example:
            >>> Average(Mean(0.5, None, 9), "mean of 1 of 2 parts", 1, ("b",)).extent()
            {'complete': False, 'parts': 1, 'whole': 2}
        """
        return {"complete": self.official, "parts": self.parts, "whole": self.whole}


def incomplete(row: Mapping[str, Any]) -> str:
    """Return what stands in place of an average that lacks parts; nothing where it lacks none.

    Example:
        >>> incomplete({"complete": False, "parts": 1, "whole": 11}), incomplete({"score": 0.5})
        ('incomplete (1 of 11)', '')
    """
    return "" if row.get("complete", True) else f"incomplete ({row['parts']} of {row['whole']})"


def official(
    benchmark: str,
    parts: Mapping[str, Mean],
    *,
    without: Sequence[str] = (),
) -> Average:
    """Return the official average of a benchmark.

    value = sum w m / sum w over its subjects, with w = 1, or the number of questions where the
    rule is weighted; standard error = sqrt(sum (w e)^2) / sum w, its subjects being independent.

    Source: pangu23, section 5.4; fei23; OpenCompass for the plain means.
    Unit: that of the parts.

    Args:
        parts: the mean of every subject that was run, by its name.
        without: subjects that are left out on purpose, as LawBench's 2-1.

    Example:
        >>> found = official("lawbench", {"1-1": Mean(0.2, None, 500), "1-2": Mean(0.4, None, 500)})
        >>> round(found.mean.value, 3), len(found.missing), found.official
        (0.3, 18, False)
    """
    one = find_benchmark(benchmark)
    wanted = [subject.name for subject in one.subjects if subject.name not in without]
    if one.average == "weighted":
        shares = {name: parts[name].n for name in wanted if name in parts}
        return weighted_mean(parts, shares, wanted, "subjects", WEIGHTED)
    what = "tasks" if one.average == "lawbench" else "subjects"
    found = macro(parts, wanted, what)
    return _describe(found, one, without)


def macro(parts: Mapping[str, Mean], wanted: Sequence[str], what: str = "parts") -> Average:
    """Return the plain mean, in which every part counts alike.

    Example:
        >>> macro({"a": Mean(0.2, None, 5), "b": Mean(0.4, None, 9)}, ["a", "b", "c"]).formula
        'mean of 2 of 3 parts; not run: c'
    """
    return weighted_mean(parts, dict.fromkeys(wanted, 1), wanted, what)


def weighted_mean(
    parts: Mapping[str, Mean],
    weights: Mapping[str, int | float],
    wanted: Sequence[str],
    what: str = "parts",
    how: str = "",
) -> Average:
    """Return the mean of the parts by their weights.

    Args:
        weights: of every part that is there.
        wanted: names of all parts, in order.
        what: they are, in words.
        how: they are weighted, in words.
    """
    there = [name for name in wanted if name in parts]
    missing = tuple(name for name in wanted if name not in parts)
    mean = combine_means([parts[name] for name in there], [float(weights[name]) for name in there])
    if len(wanted) == 1:  # its own average
        what = what.removesuffix("s")
    formula = f"mean of {len(there)} {what}{how}"
    if missing:
        formula = (
            f"mean of {len(there)} of {len(wanted)} {what}{how}; not run: {', '.join(missing)}"
        )
    return Average(mean, formula, len(there), missing)


def means_by_heading(parts: Mapping[str, Mean], headings: Mapping[str, str]) -> dict[str, Average]:
    """Return the plain means under headings, as of LawBench's levels and kinds of task.

    Args:
        headings: the heading of every part, of those too that were not run.
    """
    names = dict.fromkeys(headings.values())
    return {
        heading: macro(parts, [part for part, its in headings.items() if its == heading])
        for heading in names
    }


def group_means(parts: Mapping[str, Mean]) -> dict[str, Average]:
    """Return the means of the general benchmarks by the source's groups, and of all eleven.

    Source: pangu23, tables 5 and 6: the average of all is the plain mean of the eleven.

    Args:
        parts: the score of every benchmark that was run, by its name.
    """
    groups = {name: one.group for name, one in BENCHMARKS.items() if one.group in GROUPS}
    return {
        **means_by_heading(parts, groups),
        "general": macro(parts, list(groups), "benchmarks"),
    }


def _describe(found: Average, one: Benchmark, without: Sequence[str]) -> Average:
    formula = found.formula
    if one.average == "lawbench" and found.official and not without:
        formula = f"(2 M + 10 U + 8 A) / 20 = {formula}"
    if without:
        formula += f", without {', '.join(without)}"
    return Average(found.mean, formula, found.parts, found.missing)
