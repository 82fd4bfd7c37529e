"""Who may import whom, read off the syntax trees; the rule is shown to be able to fail."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import layerlab

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "layerlab"
FILES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [
    path
    for folder in ("layerlab", "tests", "bench", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*"))
    # The page of a comparison whose results are kept is made, and never committed.
    if path.suffix in {".py", ".js", ".css", ".html"} and path.name != "report.html"
]
FORBIDDEN = {"utils", "common", "helpers", "misc", "base", "core"}
LONGEST = 400

# Small tools of the house that any part may use.
SHARED = {
    "archive",
    "disk",
    "domain",
    "errors",
    "limits",
    "lock",
    "normal",
    "parse",
    "pause",
    "terminal",
    "trust",
    "version",
}
# What each part may import besides itself and those tools. Parts that are not
# named here (api, advice, cli, studies) are where the stems meet, and may import all.
INSPECTION = {"numerics": {"shapes"}, "measures": {"numerics", "shapes", "builtin"}}
BUILDING = {
    "blocks": {"shapes"},
    "variants": {"blocks", "shapes"},
    "model": {"blocks", "variants", "shapes"},
    # The registry brings variants from outside that a recipe names.
    "training": {*INSPECTION, "blocks", "variants", "model", "shapes", "builtin", "registry"},
}
GROWN = {*BUILDING, "training", "numerics", "measures", "shapes", "builtin"}
MAY = {
    **INSPECTION,
    **BUILDING,
    "adaptation": GROWN,
    "evaluation": GROWN,
    "report": set[str](),
    "builtin": set[str](),
    "shapes": set[str](),
    "registry": {"builtin", "measures", "variants", "shapes", "studies"},
}
# Readings only: a report never meets a tensor.
FOREIGN = {"report": {"torch", "transformers"}}
READS_REPORT = {
    "api",
    "advice",
    "curriculum",
    "examination",
    "experiment",
    "inspect_command",
    "judging",
    "studies",
    "vocabulary_command",
}
IN_ONE_FILE = ("lm_eval", "trl", "submitit", "optuna")


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """What a file imports, wherever in the file; `a.b` for `from a import b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = module.split(".")[: -node.level] if node.level else []
            home = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{home}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).split(".")[-1]
            target = node.args[0]
            if name in {"import_module", "__import__"} and isinstance(target, ast.Constant):
                yield str(target.value)


def part(name: str) -> str | None:
    """The part of layerlab that a name lies in, as `measures`; None outside."""
    head, *rest = name.split(".")
    if head != "layerlab" or not rest:
        return None
    if rest[0] in layerlab._HOMES:  # a lazy public name leads to the module behind it
        return layerlab._HOMES[rest[0]].split(".")[1]
    return rest[0]


def offences(source: str, module: str) -> list[str]:
    """What a file with this source, at this place, imports against the rule."""
    own = part(module)
    names = set(imported(ast.parse(source), module))
    if own in {None, "__init__"}:  # the package's own face, which imports late
        return []
    found = [
        f"{module} imports {name}: {own} may import only {sorted(MAY[own])}"
        for name in names
        if own in MAY and part(name) not in {None, own, *SHARED, *MAY[own]}
    ]
    found += [
        f"{module} imports {name}: only {sorted(READS_REPORT)} may"
        for name in names
        if part(name) == "report" and own not in {"report", "__main__", *READS_REPORT}
    ]
    found += [
        f"{module} imports {name}: {own} reads readings, never tensors"
        for name in names
        if name.split(".")[0] in FOREIGN.get(own, ())
    ]
    return sorted(set(found))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_import_rule_holds(path: Path) -> None:
    assert offences(path.read_text("utf-8"), dotted(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layerlab.measures.x", "from layerlab.training.loop import step"),
        ("layerlab.measures.x", "import layerlab.report.page"),
        ("layerlab.measures.x", "from layerlab import api"),
        ("layerlab.measures.x", "from layerlab import inspect"),
        ("layerlab.measures.x", "from ..blocks import norm"),
        ("layerlab.measures.x", "def f():\n    from layerlab.model import config"),
        ("layerlab.measures.x", "import_module('layerlab.variants.pangu')"),
        ("layerlab.numerics.x", "from layerlab.measures import diversity"),
        ("layerlab.report.x", "from layerlab.measures.measure import Measure"),
        ("layerlab.report.rules.x", "from ...measures.measure import Measure"),
        ("layerlab.report.x", "import torch"),
        ("layerlab.report.x", "from transformers import AutoConfig"),
        ("layerlab.report.x", "from layerlab.shapes import Hidden"),
        ("layerlab.registry", "from layerlab.report.report import Report"),
        ("layerlab.training.x", "from layerlab.report.report import Report"),
        ("layerlab.builtin.x", "from layerlab.measures.measure import Measure"),
        ("layerlab.blocks.x", "from layerlab.variants import pangu"),
    ],
)
def test_import_rule_can_fail(module: str, source: str) -> None:
    assert offences(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layerlab.measures.x", "import torch\nfrom layerlab.errors import UserError"),
        ("layerlab.measures.x", "from layerlab.numerics.formats import FLOAT16"),
        ("layerlab.training.x", "from layerlab.measures.trace import trace"),
        ("layerlab.report.rules.x", "from layerlab.report.rules.rule import Rule"),
        ("layerlab.inspect_command", "from layerlab.report.report import load_report"),
        ("layerlab.api", "from layerlab.report.report import Report"),
        ("layerlab.builtin.train", "from layerlab.builtin.card import card"),
    ],
)
def test_import_rule_allows_what_the_layers_are_for(module: str, source: str) -> None:
    assert offences(source, module) == []


def test_an_engine_is_imported_in_one_file() -> None:
    homes = defaultdict(set)
    for path in FILES:
        for name in imported(ast.parse(path.read_text("utf-8")), dotted(path)):
            homes[name.split(".")[0]].add(path)
    assert {name: homes[name] for name in IN_ONE_FILE if len(homes[name]) > 1} == {}
    assert homes["lm_eval"], "the rule looks at what is there"


def test_no_function_in_a_package_shares_its_name_with_a_submodule() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        tree = ast.parse(init.read_text("utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        aliases = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        public = functions | aliases | (set(layerlab.__all__) if init.parent == PACKAGE else set())
        beside = {path.stem for path in init.parent.iterdir() if path.suffix == ".py"}
        assert not public & beside, f"{init}: import would shadow {public & beside}"


def test_importing_the_package_and_its_command_line_costs_nothing() -> None:
    code = "import sys, layerlab, layerlab.cli; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    heavy = {"torch", "transformers", "pandas", "plotly", "numpy", "jaxtyping", "accelerate"}
    assert not heavy & set(loaded.split())


def test_every_file_holds_one_concept() -> None:
    assert FILES
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in SOURCES
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_file_is_named_after_a_heap() -> None:
    stems = {path.stem.removeprefix("test_"): path for path in SOURCES}
    assert not FORBIDDEN & set(stems)
