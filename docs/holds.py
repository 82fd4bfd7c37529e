"""The page of what holds: every claim with its source, scale and verdict; of `make docs`."""

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from layerlab.studies.engine.scale import length, trained_scale
from layerlab.studies.engine.study import Study, claimant
from layerlab.studies.recipe_claims import judge_claim as verdict_of
from layerlab.studies.support.false_discovery import format_rate, rates

table = runpy.run_path(str(Path(__file__).with_name("table.py")))["table"]
Json = Mapping[str, Any]
OUT = "docs/results/studies"
RUNS = "docs/results"
ORDER = ("holds", "smaller than asked", "fails", "not decided")
OWN = "Own"
# In the order of the sources; what is our own comes last.
SOURCES = {
    "pangu23": "PanGu-pi: nonlinearity compensation",
    "budzinskiy25": "Rounding errors of Transformers",
    "residuals24": "Eight residual schemes",
    "spectral25": "Spectral analysis of attention",
    OWN: "What layerlab asked itself",
}
LOOKED = " †"
COLUMNS = ("claim", "source", "verdict", "q", "models and replication", "number", "study")

HEAD = f"""# What holds

Every claim that a study puts to the test, with the number that decides it. **Holds** and
**fails** are said where chance is ruled out as the study says; **smaller than asked** where the
difference has the sign that was claimed and is surely below the threshold; **not decided** speaks
neither for nor against a claim. A verdict is one on the models, texts and draws of its study: where
a claim of a source about billions of parameters was judged on a small trained model, it names
that model's scale. Each page says more, and where it is the fast mode's, beside machine and time.
*Own* claims are ours. † stands where a threshold, or a number of draws, was set after a first
result. Sources: [keys](sources.md).

```sh
layerlab study --all --fast                        # minutes: few draws, stored runs judged again
layerlab study --all --runs {RUNS} --out {OUT}
make docs                                          # writes this page and those of the studies
```"""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict and where it stands.

    Attributes:
        link: to what judged it.
        section: whose study it is, a key of `SOURCES`.
        place: of its claim in a source.
        rate: its false-discovery rate.
    """

    link: str
    section: str
    place: str
    verdict: Json
    rate: float | None = None

    @property
    def whose(self) -> str:
        """Return a key of `SOURCES`; a claim of a fifth source counts with the study's source."""
        key = claimant(self.place)
        return key if key in SOURCES else self.section

    @property
    def scale(self) -> str:
        """Return parameters and tokens of the trained models, if the verdict is on them alone."""
        return trained_scale(self.verdict["scale"])


# One claim, at all scales that it was judged at: the smallest first.
Claim = Sequence[Judged]


def holds(
    found: Mapping[str, Json],
    declared: Mapping[str, Study],
    contests: Mapping[str, Sequence[Json]] = MappingProxyType({}),
) -> str:
    """Return the page of all claims with their verdicts.

    Args:
        found: what came of each study, as `stored` gives it.
        contests: verdicts of comparisons that no study carries out, as `contested` gives them.
    """
    claims = judge(found, declared, contests)
    every = [one for claim in claims for one in claim]
    several = sum(len(claim) > 1 for claim in claims)
    beside = f" and {len(contests)} further comparison" if contests else ""
    beside += "s" * (len(contests) > 1)
    parts = [HEAD, f"{len(claims)} claims in {len(found)} studies{beside}:", _counts(claims)]
    if several:
        parts.append(f"{several} of them were judged at several scales, and count by the largest.")
    parts.append(_uncorrected(every))
    for key, group in groupby(claims, key=lambda claim: claim[0].section):
        parts += [f"## {SOURCES[key]}", _fold(list(group))]
    waiting = sorted(set(declared) - set(found))
    if waiting:
        parts.append(f"Not run yet: {', '.join(f'`{name}`' for name in waiting)}.")
    return "\n\n".join(parts) + "\n"


def judge(
    found: Mapping[str, Json],
    declared: Mapping[str, Study],
    contests: Mapping[str, Sequence[Json]],
) -> list[Claim]:
    """Return every claim with its verdicts, as `holds` takes what it is given."""
    return _claims([*_studied(found, declared), *_compared(contests)])


def contested(folder: Path, declared: Mapping[str, Study]) -> dict[str, list[Json]]:
    """Return the verdicts of comparisons outside studies: repeats at other scales."""
    found = {}
    for file in sorted(folder.glob("*/comparison.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if file.parent.name not in declared and content["claims"]:
            unit = f"{len(content['seeds'])} seeds"
            judged = [vars(verdict_of(one, content)) for one in content["claims"]]
            found[file.parent.name] = [{**one, "unit": unit} for one in judged]
    return found


def _studied(found: Mapping[str, Json], declared: Mapping[str, Study]) -> Iterator[Judged]:
    for name in sorted(found):
        study = declared[name]
        for one in found[name]["verdicts"]:
            yield Judged(
                link=f"[{name}](studies/{name}.md)",
                section=study.key,
                place=one.get("source") or study.source,
                verdict=one,
            )


def _compared(contests: Mapping[str, Sequence[Json]]) -> Iterator[Judged]:
    for name, verdicts in contests.items():
        link = f"[{name}](results/README.md#{name})"
        for one in verdicts:
            section = claimant(one["source"])
            yield Judged(link=link, section=section, place=one["source"], verdict=one)


def _claims(every: Sequence[Judged]) -> list[Claim]:
    """Return the claims by source; one that several judge is one claim, where it first stands."""
    found = rates([one.verdict.get("p") for one in every])
    claims: dict[tuple[str, str], list[Judged]] = {}
    for one, rate in zip(every, found, strict=True):
        key = one.verdict["claim"], one.place
        claims.setdefault(key, []).append(replace(one, rate=rate))
    whole = [sorted(claim, key=_length) for claim in claims.values()]
    return sorted(whole, key=lambda claim: list(SOURCES).index(claim[0].section))


def _length(one: Judged) -> float:
    return length(one.verdict["scale"])


def _counts(claims: Sequence[Claim]) -> str:
    """Count words by source, then of all sources, then of ours; each claim by its largest scale."""
    words = {key: Counter[str]() for key in SOURCES}
    for claim in claims:
        words[claim[-1].whose][claim[-1].verdict["word"]] += 1
    theirs = sum((words[key] for key in SOURCES if key != OWN), Counter[str]())
    rows = [(f"[{SOURCES[key]}](#{_anchor(key)})", words[key]) for key in SOURCES if key != OWN]
    rows += [("**claims of the sources**", theirs), ("**claims of our own**", words[OWN])]
    return table(
        ("source", *ORDER),
        [(name, *(str(found[word]) for word in ORDER)) for name, found in rows],
    )


def _anchor(key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", SOURCES[key].lower()).strip("-")


def _uncorrected(every: Claim) -> str:
    """Say that nothing is corrected across studies, and what q is."""
    tested = sum(one.rate is not None for one in every)
    return f"""Nothing is corrected across studies. A recipe corrects its own tests for one another,
and **q** tells what is left of them on this page: the false-discovery rate of Benjamini and
Hochberg over the {tested} verdicts that rest on a test with a p. The other
{len(every) - tested} rest on 95 % intervals, each by itself, or on exact counts; these have no p,
and so no q. Of many such verdicts some are wrong: each is in up to 2.5 % of all repetitions where
the truth lies at its threshold."""


def _fold(claims: Sequence[Claim]) -> str:
    """Return the claims of a source as a table that opens on a click."""
    count = f"{len(claims)} claim{'s' * (len(claims) != 1)}"
    rows = table(COLUMNS, [_row(claim) for claim in claims])
    return f"<details markdown><summary>{count}</summary>\n\n{rows}\n\n</details>"


def _row(claim: Claim) -> tuple[str, ...]:
    first = claim[0]
    place = re.sub(f"^{OWN}\\b", f"*{OWN}*", first.place)
    return (
        _cell(first.verdict["claim"]),
        place,
        _lines(claim, _word),
        _lines(claim, lambda one: format_rate(one.rate)),
        _lines(claim, _replicated),
        _lines(claim, lambda one: _cell(one.verdict["said"])),
        _lines(claim, lambda one: one.link),
    )


def _replicated(one: Judged) -> str:
    return _cell("; ".join(filter(None, (one.verdict["scale"], one.verdict["unit"]))))


def _word(one: Judged) -> str:
    # Models that were only timed have weights at random.
    scale = one.scale or one.verdict["scale"].partition("models of ")[2]
    at = f" at {scale}" if scale else ""
    return f"**{one.verdict['word']}**{at}{LOOKED if one.verdict.get('looked') else ''}"


def _lines(claim: Claim, say: Any) -> str:
    """Return a cell with a line for each scale."""
    return "<br>".join(say(one) for one in claim)


def _cell(text: str) -> str:
    return " ".join(text.split())
