"""A page for each study whose result lies in docs/results/studies, and the page of what holds."""

import json
import re
import runpy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from layerlab.blocks.activation import NAMES
from layerlab.report.setup import rows
from layerlab.studies.study import Study
from layerlab.variants.inventory import variants

table = runpy.run_path(str(Path(__file__).with_name("table.py")))["table"]
Json = Mapping[str, Any]
OUT = "docs/results/studies"
RUNS = "docs/results"
ORDER = ("holds", "fails", "not decided")
# In the order of the sources; what is our own comes last.
SOURCES = {
    "pangu23": "PanGu-pi: nonlinearity compensation",
    "budzinskiy25": "Rounding errors of Transformers",
    "residuals24": "Eight residual schemes",
    "spectral25": "Spectral analysis of attention",
    "Own": "What layerlab asked itself",
}
# A word of prose; what has a figure, a bracket or a hyphen in it is a symbol or a name.
WORD = re.compile(r"(a|[a-z]{2,})(?=[ ,:;])")
# A table of more rows than this is left to its file.
ROWS = 24

HEAD = f"""# What holds

Every claim that a study puts to the test, with the number that decides it. **Holds** and
**fails** are said where chance is ruled out as the study says; **not decided** speaks neither for
nor against a claim. A verdict is one on the models, texts and draws of its study: each page says
which, and where it is the fast mode's, beside machine and time. Sources: [keys](sources.md).

```sh
layerlab study --all --fast                        # minutes: few draws, stored runs judged again
layerlab study --all --runs {RUNS} --out {OUT}
make docs                                          # writes this page and those of the studies
```"""


def stored(folder: Path, declared: Iterable[Study]) -> dict[str, Json]:
    """The result of every study that has one."""
    found = {}
    for study in declared:
        file = folder / study.name / "study.json"
        if file.is_file():
            found[study.name] = json.loads(file.read_text(encoding="utf-8"))
    return found


def holds(found: Mapping[str, Json], declared: Mapping[str, Study]) -> str:
    """The page of all claims with their verdicts."""
    total = _words(found.values()).total()
    parts = [HEAD, f"{total} claims in {len(found)} studies:"]

    def place(name: str) -> tuple[int, str]:
        return list(SOURCES).index(declared[name].key), name

    groups = {
        key: list(names)
        for key, names in groupby(sorted(found, key=place), key=lambda name: declared[name].key)
    }
    parts.append(_summary({key: [found[name] for name in groups[key]] for key in groups}))
    for key, names in groups.items():
        parts += [f"## {SOURCES[key]}", _claims(names, found)]
    waiting = sorted(set(declared) - set(found))
    if waiting:
        parts.append(f"Not run yet: {', '.join(f'`{name}`' for name in waiting)}.")
    return "\n\n".join(parts) + "\n"


def _words(studies: Iterable[Json]) -> Counter[str]:
    return Counter(one["word"] for study in studies for one in study["verdicts"])


def _summary(groups: Mapping[str, Sequence[Json]]) -> str:
    """Verdicts by source, and of all."""
    rows = []
    for key, studies in groups.items():
        anchor = re.sub(r"[^a-z0-9]+", "-", SOURCES[key].lower()).strip("-")
        rows.append((f"[{SOURCES[key]}](#{anchor})", _words(studies)))
    whole = _words(study for studies in groups.values() for study in studies)
    rows.append(("**all**", whole))
    return table(
        ("source", *ORDER), [(name, *(str(words[word]) for word in ORDER)) for name, words in rows]
    )


def _claims(names: Sequence[str], found: Mapping[str, Json]) -> str:
    rows = [
        (
            _cell(one["claim"]),
            f"**{one['word']}**",
            _cell(one["said"]),
            f"[{name}](studies/{name}.md)",
        )
        for name in names
        for one in found[name]["verdicts"]
    ]
    return table(("claim", "verdict", "number", "study"), rows)


def page(study: Study, content: Json, folder: Path) -> str:
    """The page of one study.

    Args:
        folder: that holds its result, with its pictures.
    """
    return "\n\n".join(_parts(study, content, folder)) + "\n"


def _parts(study: Study, content: Json, folder: Path) -> Iterator[str]:
    place = f"../results/studies/{study.name}"
    yield f"# {content['title']}"
    yield f"Source: {content['source']} ([sources](../sources.md))"
    for one in content["verdicts"]:
        where = f" *({one['source']})*" if one.get("source") else ""
        yield f"**{one['word'].capitalize()}**: {one['claim']}{where}\n\n> {_lead(one['said'])}"
    for picture in content["pictures"]:
        file = f"{picture['name']}.svg"
        if (folder / file).is_file():
            yield f"## {picture['title']}\n\n![{picture['title']}]({place}/{file})"
    yield f"## Set-up\n\n{table(('set-up', 'value'), _setup(content))}"
    if content["remarks"]:
        yield "\n".join(f"- {one}" for one in content["remarks"])
    for name, frame in content["frames"].items():
        yield f"## Table: {name}\n\n{_frame(name, frame, place)}"
    yield f"""## To repeat it

```sh
{content.get("command", f"layerlab study {study.name}")}          # {study.cost}
layerlab study {study.name} --fast
```

All numbers, unrounded: [study.json]({place}/study.json)."""


def _setup(content: Json) -> Iterator[tuple[str, str]]:
    for name, value in rows(content):
        yield name, f"{value:,}" if isinstance(value, int) else f"{value}"
    yield "layerlab", f"{content['layerlab']}, {content['created'][:10]}"


def _frame(name: str, frame: Json, place: str) -> str:
    columns = frame["columns"]
    rows = list(zip(*(frame["data"][column] for column in columns), strict=True))
    whole = f"[{name}.csv]({place}/tables/{name}.csv)"
    if len(rows) > ROWS or len(columns) > 9:
        return f"{len(rows)} rows of {len(columns)} columns: {whole}"
    return table(columns, [[_number(cell) for cell in row] for row in rows])


def _number(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else _cell("" if cell is None else str(cell))


def _cell(text: str) -> str:
    return " ".join(text.split())


def _lead(said: str) -> str:
    """A sentence that begins with a capital, unless it begins with a symbol or a name."""
    first = WORD.match(said)
    named = {*variants(), *NAMES} - {"none"}
    return said if first is None or first[0] in named else said[:1].upper() + said[1:]
