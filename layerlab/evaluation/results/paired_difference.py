"""Two runs over the same questions: paired differences, the domain's gain and what it cost.

A question that is hard is hard for both models, so the difference of each question varies less
than the scores do, and its standard error is that of the differences.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.metrics.estimates import Mean, match_scores, paired_mean
from layerlab.evaluation.results.averages import GROUPS, means_by_heading, official
from layerlab.validation import short_repr

Record = Mapping[str, Any]
DOMAIN, GENERAL, FORGETTING = "domain mean", "general mean", "forgetting"


def paired_differences(
    ours: Sequence[Record], theirs: Sequence[Record], name: str
) -> list[dict[str, Any]]:
    """Return the differences of every benchmark, then of the means, averaged as the scores are.

        forgetting = general mean of theirs - general mean of ours

    Args:
        ours: results of tasks of one model.
        theirs: of the other, asked in the same way.
        name: what the other is called.

    Raises:
        UserError: the two have no question in common.
    """
    differences: dict[str, Mean] = {}
    rows: list[dict[str, Any]] = []
    for benchmark, parts in _pair(ours, theirs).items():
        average = official(benchmark, parts)
        differences[benchmark] = average.mean
        rows.append(_row(ours, name, BENCHMARKS[benchmark].title, average.mean, average.formula))
    if not rows:
        raise UserError(
            f"this run and {short_repr(name)} have no question in common; evaluate both with the "
            "same --suite, --scoring, --limit and data"
        )
    for title, groups in ((DOMAIN, ("finance", "law")), (GENERAL, GROUPS)):
        inside = {one: title for one in differences if BENCHMARKS[one].group in groups}
        for average in means_by_heading(differences, inside).values():
            rows.append(_row(ours, name, title, average.mean, average.formula))
            if title == GENERAL:
                lost = Mean(0.0 - average.mean.value, average.mean.error, average.mean.n)
                rows.append(_row(ours, name, FORGETTING, lost, f"minus the {GENERAL}"))
    return rows


def differing(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """Describe how two runs were asked differently, in which case they do not compare."""
    other = {one["task"]: one for one in theirs}
    found: dict[str, None] = {}
    apart: Counter[str] = Counter()
    for one in ours:
        if (its := other.get(one["task"])) is None:
            continue
        title = BENCHMARKS[one["benchmark"]].title
        if one["scoring"] != its["scoring"]:
            found[f"{title}: scored by {one['scoring']} here, by {its['scoring']} there"] = None
        if one["shots"]["asked"] != its["shots"]["asked"]:
            shots, asked = one["shots"]["asked"], its["shots"]["asked"]
            told = f"{shots} examples here, {asked} there"
            if shots == 1:
                told = f"{shots} example here, {asked} there"
            found[f"{title}: {told}"] = None
        for name, words in (("cot", "explained examples"), ("chat", "the chat template")):
            if bool(one.get(name)) != bool(its.get(name)):
                only = f"{words} only here" if one.get(name) else f"{words} only there"
                found[f"{title}: {only}"] = None
        if not match_scores(one["scores"], its["scores"])[0]:
            apart[title] += 1
    bare = [f"{title}: no question in common in {n} of its parts" for title, n in apart.items()]
    return [*found, *bare]


def costs(
    arms: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what each precision costs against the model as it was loaded."""
    found: list[dict[str, Any]] = []
    plain: Mapping[str, Any] = {}
    for arm in arms:
        if "perplexity" not in arm:
            continue
        found.append({"arm": arm["arm"], **arm["perplexity"]})
        if not arm["precision"]:
            plain = arm
            continue
        ours, theirs = _of(records, arm["arm"]), _of(records, plain["arm"])
        rows = paired_differences(ours, theirs, str(plain["arm"]))
        found += [row for row in rows if row["title"] != "forgetting"]
    return found


def differences(
    earlier: Mapping[str, Any], names: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare every model of ours with the earlier one of its name, or with the only one."""
    there = [str(one["arm"]) for one in earlier["arms"]]
    found: list[dict[str, Any]] = []
    said: dict[str, None] = {}
    for name in names:
        if name not in there and len(there) != 1:
            raise UserError(
                f"--against holds {', '.join(map(short_repr, there))}, and none is called "
                f"{short_repr(name)}; give the results of a single model"
            )
        other = name if name in there else there[0]
        ours, theirs = _of(records, name), _of(earlier["subjects"], other)
        found += paired_differences(ours, theirs, f"{other}, earlier")
        said |= dict.fromkeys(f"asked differently: {one}" for one in differing(ours, theirs))
    return found, list(said)


def _of(records: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    return [one for one in records if one["arm"] == arm]


def _pair(ours: Sequence[Record], theirs: Sequence[Record]) -> dict[str, dict[str, Mean]]:
    """Return the mean differences over the questions of both runs, by benchmark and subject."""
    other = {one["task"]: one for one in theirs}
    found: dict[str, dict[str, Mean]] = {}
    for one in ours:
        same = match_scores(one["scores"], other.get(one["task"], {}).get("scores", {}))
        if same[0]:
            found.setdefault(one["benchmark"], {})[one["subject"]] = paired_mean(*same)
    return found


def _row(ours: Sequence[Record], name: str, title: str, mean: Mean, formula: str) -> dict[str, Any]:
    return {
        "arm": ours[0]["arm"],
        "against": name,
        "title": title,
        "difference": mean.value,
        "error": mean.error,
        "n": mean.n,
        "formula": formula,
    }
