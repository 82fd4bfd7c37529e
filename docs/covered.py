"""The places of the four sources, with code, tests and verdicts of each; part of `make docs`.

What a source states is listed in places.toml. Where it is comes from the declarations themselves:
a citation (`pangu23, Lemma 1`) in the code, the name of a test in tests/claims, a study's verdict.
"""

import ast
import re
import runpy
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.variants.registry import home, variants

table = runpy.run_path(str(Path(__file__).with_name("table.py")))["table"]
KINDS = {
    "eq": "equation",
    "lemma": "Lemma",
    "theorem": "Theorem",
    "corollary": "Corollary",
    "corollarie": "Corollary",
    "remark": "Remark",
    "model": "Model",
    "figure": "Figure",
    "table": "Table",
    "section": "section",
    "equation": "equation",
    "method": "method",
    "conclusion": "conclusion",
    "advice": "advice",
}
WITHOUT = "without"
_NUMBER = r"\d+(?:\.\d+)*"
_KIND = "|".join(KINDS)
_LISTED = rf"{_NUMBER}(?:(?:, (?:and )?| and | to ){_NUMBER})*"
_PLACE = re.compile(rf"\b({_KIND})s?\.? ({_LISTED})", re.IGNORECASE)
_PLAIN = re.compile(r"abstract|introduction|first batch|second batch|future work")
# What a test's name says of the place: lemma_4_6, equations_6_to_8, methods_3_4_and_6.
_NAMED = re.compile(rf"({_KIND})s?_((?:\d+|to|and)(?:_(?:\d+|to|and))*)(?=_|$)")
Places = Mapping[str, str]


def covered(root: Path, claims: Iterable[Sequence[Any]]) -> str:
    """Return a table for each source: its places, and where each is.

    Args:
        claims: as `holds.py` judges them, each at all scales.

    Raises:
        ValueError: a place that nothing speaks of, and that is not left out; a claim on one that is
            not in the list.
    """
    sources = tomllib.loads((root / "docs" / "places.toml").read_text("utf-8"))
    code, tests = read_code(root, sources), read_tests(root, sources)
    verdicts = read_verdicts(claims, sources)
    parts = []
    for key, places in sources.items():
        without = places.pop(WITHOUT, {})
        rows = [
            (place, about, *(_cell(found[key, place]) for found in (code, tests, verdicts)))
            for place, about in places.items()
        ]
        silent = [place for place, _, *found in rows if not any(found)]
        if silent:
            raise ValueError(f"nothing speaks of {key}: {', '.join(silent)}; see docs/places.toml")
        rows += [(place, f"*left out*: {why}", "", "", "") for place, why in without.items()]
        head = ("place", "what it states", "code", "tests", "verdict, and at what scale")
        parts.append(f"### {key}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


Found = dict[tuple[str, str], list[str]]


def read_code(root: Path, sources: Mapping[str, Places]) -> Found:
    """Return the files of the package that cite each place; studies judge it, and are left out."""
    found: Found = defaultdict(list)
    for file in sorted((root / "layerlab").rglob("*.py")):
        part = file.relative_to(root / "layerlab")
        if part.parts[0] == "studies" and "support" not in part.parts:
            continue
        for text in _strings(file):
            _add(found, cited(text, sources), f"`{part.as_posix()}`")
    for name, variant in variants().items():
        if home(name).startswith("layerlab."):
            _add(found, cited(variant.source, sources), f"[{name}](variants/{name}.md)")
    for file in sorted((root / "layerlab").rglob("*.toml")):
        part = file.relative_to(root / "layerlab")
        what = f"the recipe `{file.stem}`" if part.parts[0] == "recipes" else f"`{part.as_posix()}`"
        # A line is a citation's end: the next may be of another table.
        for line in file.read_text("utf-8").splitlines():
            _add(found, cited(line, sources), what)
    return found


def read_tests(root: Path, sources: Mapping[str, Places]) -> Found:
    """Return how many tests of each file in tests/claims name each place."""
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for file in sorted((root / "tests" / "claims").glob("test_*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        key = next((one for one in sources if one in (ast.get_docstring(tree) or "")), "")
        tests = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
        for test in tests:
            for place in named(test.name, sources.get(key, {})):
                counts[key, place, file.name] += 1
    found: Found = defaultdict(list)
    for (key, place, name), count in counts.items():
        found[key, place].append(f"{count} in `{name}`")
    return found


def read_verdicts(claims: Iterable[Sequence[Any]], sources: Mapping[str, Places]) -> Found:
    """Return every claim on a place with its word, at its largest scale.

    Raises:
        ValueError: a claim of a source is on none of its places.
    """
    found: Found = defaultdict(list)
    for claim in claims:
        one = claim[-1]
        whose = "*Own*: " if one.place.startswith("Own") else ""
        scale = f"{one.verdict['scale']}; " if one.verdict["scale"] else ""
        line = f"**{one.verdict['word']}**: {whose}{one.verdict['claim']} ({scale}{one.link})"
        for said in one.place.split("; "):
            places = [*cited(said, sources)]
            if not places and said.startswith(tuple(sources)):
                raise ValueError(f"a claim is on {said}, no place of docs/places.toml")
            _add(found, places, line)
    return found


def cited(text: str, sources: Mapping[str, Places]) -> Iterator[tuple[str, str]]:
    """Yield every source and place that a text cites, as `pangu23, Lemmas 1 and 2` does."""
    parts = re.split(rf"\b({'|'.join(sources)})\b", text)
    for key, rest in zip(parts[1::2], parts[2::2], strict=True):
        # A citation ends with its sentence, or where another source begins.
        said = re.split(r"[;)]|\.\s|\n\n", rest, maxsplit=1)[0]
        said = " ".join(said.split())
        places = [*_PLAIN.findall(said)]
        for kind, listed in _PLACE.findall(said):
            numbers = _spread(re.split(r"[, ]+", listed))
            places += (f"{KINDS[kind.lower()]} {one}" for one in numbers)
        yield from ((key, place) for place in places if place in sources[key])


def named(name: str, places: Places) -> set[str]:
    """Return the places that the name of a test speaks of."""
    dotted = any("." in place for place in places if place.startswith("Lemma"))
    found = set()
    for kind, numbers in _NAMED.findall(name):
        joined = re.sub(r"(\d+)_(\d+)", r"\1.\2", numbers) if dotted else numbers
        found |= {f"{KINDS[kind]} {one}" for one in _spread(joined.split("_"))}
    return {place for place in found if place in places}


def _spread(words: Sequence[str]) -> list[str]:
    """Return all numbers of a list in words; from one `to` another where both have a chapter."""
    found = list[str]()
    for before, word in zip(["", *words], words, strict=False):
        if before == "to":
            *chapter, first = found[-1].split(".")
            numbers = range(int(first) + 1, int(word.split(".")[-1]) + 1)
            found += [".".join([*chapter, str(number)]) for number in numbers]
        elif word not in ("to", "and", ""):
            found.append(word)
    return found


def _strings(file: Path) -> Iterator[str]:
    """Yield the strings of a file without their examples, which show a citation and make none."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.split(r"\n\s*Example:\n", node.value)[0]


def _add(found: Found, places: Iterable[tuple[str, str]], what: str) -> None:
    for place in places:
        if what not in found[place]:
            found[place].append(what)


def _cell(lines: Sequence[str]) -> str:
    return "<br>".join(lines)
