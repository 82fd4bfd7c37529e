"""A page for each study whose result lies in docs/results/studies; part of `make docs`."""

import json
import re
import runpy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.blocks.activation import NAMES
from layerlab.report.pages.study import list_settings
from layerlab.studies.engine.scale import with_scale
from layerlab.studies.engine.study import Study
from layerlab.variants.registry import variants

PARTS = runpy.run_path(str(Path(__file__).with_name("table.py")))
table, listed = PARTS["table"], PARTS["listed"]
Json = Mapping[str, Any]
# A word of prose; what has a figure, a bracket or a hyphen in it is a symbol or a name.
WORD = re.compile(r"(a|[a-z]{2,})(?=[ ,:;])")
# A table of more rows than this is left to its file.
ROWS = 24


def stored(folder: Path, declared: Iterable[Study]) -> dict[str, Json]:
    """Return the result of every study that has one; its verdicts have their unit and scale.

    Both are declarations: where an earlier version stored none, they are what is declared now.
    """
    found = {}
    for study in declared:
        file = folder / study.name / "study.json"
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            verdicts = [with_scale(one, content, study) for one in content["verdicts"]]
            found[study.name] = {**content, "verdicts": verdicts}
    return found


def claims(found: Iterable[Study]) -> str:
    """Return the page of all studies: what each judges, and what it costs."""
    rows = [
        (
            f"`{one.name}`",
            one.claim,
            one.source,
            str(one.draws),
            one.cost,
            ", ".join(f"`{name}={value}`" for name, value in one.options.items()),
            _models(one),
        )
        for one in found
    ]
    parts = [
        "# Studies",
        "`layerlab study NAME` repeats one figure or claim of a source and says whether it holds, "
        "is smaller than asked, fails, or is not decided, with the number and its 95 % interval "
        "from resampled draws. `layerlab study --all` runs every study and writes one page of all "
        "claims; what came out here is in [what holds](what-holds.md).",
        "\n".join(
            (
                "- **What it writes**: `study.html`, `study.json` and `tables/*.csv` in "
                "`layerlab-studies/NAME` (`--out DIR`); each picture as a file with `--figures "
                "svg` (or png, pdf; extra `figures`). With `--lang zh` pages are Chinese.",
                "- **Going on**: after Ctrl-C the same command goes on where it was; `--restart` "
                "begins anew.",
                "- **Draws**: `--draws N` takes fewer random initialisations than the source does. "
                "Below six, or more where several intervals judge one claim, no interval decides "
                "anything, and a counterexample still does; "
                "below 30 the interval is widened as Student's t is (hesterberg15).",
                "- **`--fast`** takes so few draws that a study is over in seconds, and comes to "
                "the same verdict. Studies that compare trained models train what is missing in "
                "the folder of `--runs` (hours); with `--fast` they judge the runs that lie there, "
                "and where there are none, `dimension-twins`, `features-pca`, `same-loss`, "
                "`saliency-repeat` and `scaled-identity-trained` train smaller models and say so. "
                "`latency-measured` then times nothing and `tokenizer-table` counts no law.",
                "- **Your own model**: `layerlab study attention-lambda --model DIR --text FILE` "
                "judges the claim on it, for studies with a name in the last column, which read "
                "the built-in models of these names else. A colon behind a variant or preset "
                "gives it random weights (`gpt2-large:`); several `--model` stand side by side, "
                "and `gpt-curves` takes two, pre-norm first. Try `--fast` first: costs grow with "
                "the model.",
                "- **Speed**: `--threads N` says how many batches run at once.",
                '- **In Python**: `layerlab.study("NAME", draws=500).verdict`, with '
                "`model=[one, other]`; models in memory bring a `tokenizer=`.",
            )
        ),
        "Verdicts follow one rule. A claim that names a size, or whose source prints one, holds "
        "where the interval is beyond that size, and fails where it is surely short of it. A claim "
        "of a direction fails where it is surely not in that direction; where a study asks for a "
        "size of its own on top, what is surely in the direction and surely short of the size is "
        "**smaller than asked**. A claim on several numbers fails where one of them does. All else "
        "is not decided. Beside each verdict stand its models and its unit of replication: more "
        "passages of one text are not more models.",
        "Costs are those of two free cores. Options are given as `--option NAME=VALUE`. Keys of "
        "sources are resolved in [sources](sources.md).",
        table(("study", "claim", "source", "draws", "cost", "options", "models"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def _models(one: Study) -> str:
    """Return the models that a study reads if nobody names others; empty where it takes none."""
    named = ", ".join(f"`{name}`" for name in one.models)
    return f"{named}; just two" if one.roles else named


def page(study: Study, content: Json, folder: Path) -> str:
    """Return the page of one study.

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
        head = f"**{one['word'].capitalize()}**: {one['claim']}{where}"
        yield f"{head}\n\n> {_lead(one['said'])}\n\n{_judged(one)}"
    for picture in content["pictures"]:
        file = f"{picture['name']}.svg"
        if (folder / file).is_file():
            yield f"## {picture['title']}\n\n![{picture['title']}]({place}/{file})"
    yield f"## Set-up\n\n{table(('set-up', 'value'), _setup(content))}"
    if content["remarks"]:
        yield listed(content["remarks"])
    for name, frame in content["frames"].items():
        yield f"## Table: {name}\n\n{_frame(name, frame, place)}"
    yield f"""## To repeat it

```sh
{content.get("command", f"layerlab study {study.name}")}          # {study.cost}
layerlab study {study.name} --fast
```

All numbers, unrounded: [study.json]({place}/study.json)."""


def _judged(verdict: Json) -> str:
    """Say on what a verdict was judged, and whether its threshold was set after a look."""
    marked = " Its threshold or number of draws was set after a first result."
    scale = f"Judged on: {verdict['scale']}. " if verdict["scale"] else ""
    unit = f"Unit of replication: {verdict['unit']}."
    return f"{scale}{unit}{marked if verdict.get('looked') else ''}"


def _setup(content: Json) -> Iterator[tuple[str, str]]:
    for name, value in list_settings(content):
        yield name, f"{value:,}" if isinstance(value, int) else f"{value}"
    yield "layerlab", f"{content['layerlab']}, {content['created'][:10]}"


def _frame(name: str, frame: Json, place: str) -> str:
    columns = frame["columns"]
    rows = list(zip(*(frame["data"][column] for column in columns), strict=True))
    if len(rows) > ROWS or len(columns) > 9:
        whole = f"`frames.{name}` in [study.json]({place}/study.json)"
        return f"{len(rows)} rows of {len(columns)} columns: {whole}"
    return table(columns, [[_number(cell) for cell in row] for row in rows])


def _number(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else _cell("" if cell is None else str(cell))


def _cell(text: str) -> str:
    return " ".join(text.split())


def _lead(said: str) -> str:
    """Begin a sentence with a capital, unless it begins with a symbol or a name."""
    first = WORD.match(said)
    named = {*variants(), *NAMES} - {"none"}
    return said if first is None or first[0] in named else said[:1].upper() + said[1:]
