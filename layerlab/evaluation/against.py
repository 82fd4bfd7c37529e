"""Two runs over the same questions: paired differences, the domain's gain and what it cost.

A question that is hard is hard for both models, so the difference of each question varies less
than the scores do, and its standard error is that of the differences.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab import UserError
from layerlab.domain import shown
from layerlab.evaluation.average import GROUPS, headed, official
from layerlab.evaluation.benchmark import BENCHMARKS
from layerlab.evaluation.score import Mean, matched, paired

Record = Mapping[str, Any]
DOMAIN, GENERAL, FORGETTING = "domain mean", "general mean", "forgetting"


def compared(ours: Sequence[Record], theirs: Sequence[Record], name: str) -> list[dict[str, Any]]:
    """Differences of every benchmark, then of the means, by the same averages as the scores.

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
    for benchmark, parts in _paired(ours, theirs).items():
        average = official(benchmark, parts)
        differences[benchmark] = average.mean
        rows.append(_row(ours, name, BENCHMARKS[benchmark].title, average.mean, average.formula))
    if not rows:
        raise UserError(
            f"this run and {shown(name)} have no question in common; evaluate both with the same "
            "--suite, --limit and data"
        )
    for title, groups in ((DOMAIN, ("finance", "law")), (GENERAL, GROUPS)):
        inside = {one: title for one in differences if BENCHMARKS[one].group in groups}
        for average in headed(differences, inside).values():
            rows.append(_row(ours, name, title, average.mean, average.formula))
            if title == GENERAL:
                lost = Mean(-average.mean.value, average.mean.error, average.mean.n)
                rows.append(_row(ours, name, FORGETTING, lost, f"minus the {GENERAL}"))
    return rows


def differing(ours: Sequence[Record], theirs: Sequence[Record]) -> list[str]:
    """In what two runs were asked differently, in words: then they do not compare."""
    other = {one["task"]: one for one in theirs}
    found: dict[str, None] = {}
    for one in ours:
        if (its := other.get(one["task"])) is None:
            continue
        title = BENCHMARKS[one["benchmark"]].title
        if one["scoring"] != its["scoring"]:
            found[f"{title}: scored by {one['scoring']} here, by {its['scoring']} there"] = None
        if one["shots"]["asked"] != its["shots"]["asked"]:
            asked = f"{one['shots']['asked']} examples here, {its['shots']['asked']} there"
            found[f"{title}: {asked}"] = None
    return list(found)


def _paired(ours: Sequence[Record], theirs: Sequence[Record]) -> dict[str, dict[str, Mean]]:
    """Mean differences of the questions that both answered, by benchmark and subject."""
    other = {one["task"]: one for one in theirs}
    found: dict[str, dict[str, Mean]] = {}
    for one in ours:
        same = matched(one["scores"], other.get(one["task"], {}).get("scores", {}))
        if same[0]:
            found.setdefault(one["benchmark"], {})[one["subject"]] = paired(*same)
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
