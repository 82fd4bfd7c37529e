"""Who may import whom, read off the syntax trees; the rule is shown to be able to fail."""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import layerlab

ROOT = Path(__file__).resolve().parents[2]
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

# A part may import from rows above its own, and from itself; parts of one row never import each
# other. Late imports count, and those for types too.
ROWS = (
    "errors version",
    "validation shapes builtin",
    "system known_names known_options",
    "records",
    "recipes console",
    "blocks numerics data",
    "variants observe tokenization logs",
    "model loading corpus",
    "measures",
    "plugins",
    "training",
    "experiments",
    "adaptation evaluation latency report ledger",
    "studies",
    "api",
    "cli",
)
LEVEL = {part: number for number, row in enumerate(ROWS) for part in row.split()}
# Within a part, from the lowest row up: folders and modules by their names, and what is not named
# of the modules beside them by that of the part, where it stands here. The rest has no order.
WITHIN = {
    "adaptation": "trainer sft|pretraining|embeddings pipeline",
    "api": "evaluate stages train adapt",
    "blocks": (
        "operations|cost|init|shape|spec part|position context attention|ffn|norm|residual "
        "operations.convolution operations.stream|layer"
    ),
    "cli": "arguments cli adapt app",
    "console": "progress|tables|throughput|units display console",
    "data": "data cleaning",
    "evaluation": "metrics benchmarks lawbench tasks|lm_eval_tasks harness results paired",
    "experiments": "statistics|plan executors estimate|analysis ladder experiments",
    "loading": (
        "dry_run|generation|options|trial batching|checkpoint_series|text_input folders weights "
        "model inputs|token_text|weights.matrices"
    ),
    "logs": "logs formats column_settings columns read",
    "measures": "support quantities",
    "model": (
        "ecosystem model cost|ecosystem.auto_classes laws|listing|surgery|ecosystem.torchtitan"
    ),
    "numerics": "formats emulation prediction|mixed_precision|profiles recorded",
    "observe": "architecture tracing",
    "report": "i18n views figures|findings pages results",
    "records": "records index|parquet",
    "tokenization": "spm stored tokenization",
    "training": "step|qk_control|monitor|checkpoints training",
    "studies": "engine support pangu23|spectral25|budzinskiy25 studies",
    "system": "write_errors files system|untrusted",
    # Ideas, which know neither each other's folders nor what finds them.
    "variants": (
        "attention|feedforward|models|norm|residual|flat_imports|renamed source_file registry "
        "template"
    ),
}
# What never imports what, wherever its row: nothing that measures depends on what we build, and a
# page is made of readings.
BUILDING = {"blocks", "variants", "model"}
NEVER = {
    **dict.fromkeys(("numerics", "observe", "loading", "measures"), BUILDING),
    "report": {part for row in ROWS[5:] for part in row.split()} - {"report"},
}
# Readings only: a report never meets a tensor.
FOREIGN = {"report": {"torch", "transformers"}}
MOST = 15  # files of a folder, its __init__.py among them
IN_ONE_FILE = ("lm_eval", "trl", "submitit", "optuna", "torchtitan")


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


@cache
def imports(path: Path) -> frozenset[str]:
    """Give what a file of the package imports: each is parsed once for all that ask."""
    return frozenset(imported(ast.parse(path.read_text("utf-8")), dotted(path)))


def part(name: str) -> str | None:
    """Give the part of layerlab that a name lies in, as `measures`; None outside."""
    head, *rest = name.split(".")
    return rest[0] if head == "layerlab" and rest else None


def offences(names: frozenset[str], module: str) -> list[str]:
    """List those of the imports of a file at this place that are against the rule."""
    own = part(module)
    if own is None or own.startswith("__"):  # the package's own face, which imports late
        return []
    return sorted({f"{module} imports {name}: {why}" for name in names if (why := _why(own, name))})


def _why(own: str, name: str) -> str | None:
    """Say why a part may not import this name; None where it may."""
    other = part(name)
    if name == "layerlab" or (name.startswith("layerlab.") and other not in LEVEL):
        return "nobody inside imports the package's face"
    if name.split(".")[0] in FOREIGN.get(own, ()):
        return f"{own} reads readings, never tensors"
    if other is None or other == own:
        return None
    if other in NEVER.get(own, ()):
        return f"{own} never imports {other}"
    return None if LEVEL[other] < LEVEL[own] else f"{other} lies beside {own} or below it"


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_import_rule_holds(path):
    assert offences(imports(path), dotted(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layerlab.measures.x", "from layerlab.training.trainer import step"),
        ("layerlab.measures.x", "import layerlab.report.pages.inspection"),
        ("layerlab.measures.x", "import layerlab"),
        ("layerlab.measures.x", "from layerlab import api"),
        ("layerlab.measures.x", "from layerlab import inspect"),
        ("layerlab.measures.x", "from layerlab import UserError"),
        ("layerlab.measures.x", "from ..blocks import norm"),
        ("layerlab.measures.x", "def f():\n    from layerlab.model import config"),
        ("layerlab.measures.x", "import_module('layerlab.variants.models.pangu')"),
        ("layerlab.measures.x", "if TYPE_CHECKING:\n    from layerlab.training import trainer"),
        ("layerlab.numerics.x", "from layerlab.measures import measure"),
        ("layerlab.numerics.x", "from layerlab.data.sources import opened"),
        ("layerlab.report.x", "from layerlab.evaluation.results.result import Result"),
        ("layerlab.report.findings.x", "from ...training.trainer import Trainer"),
        ("layerlab.report.x", "import torch"),
        ("layerlab.report.x", "from transformers import AutoConfig"),
        ("layerlab.plugins", "from layerlab.report.results.report import Report"),
        ("layerlab.builtin.x", "from layerlab.measures.measure import Measure"),
        ("layerlab.blocks.x", "from layerlab.variants.models import pangu"),
    ],
)
def test_import_rule_can_fail(module, source):
    assert offences(frozenset(imported(ast.parse(source), module)), module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("layerlab.measures.x", "import torch\nfrom layerlab.errors import UserError"),
        ("layerlab.measures.x", "from layerlab.numerics.formats import FLOAT16"),
        ("layerlab.training.x", "from layerlab.observe.tracing.trace import trace"),
        ("layerlab.report.findings.x", "from layerlab.report.findings.rule import Rule"),
        ("layerlab.cli.inspect", "from layerlab.report.results.report import load_report"),
        ("layerlab.api.inspect", "from layerlab.report.results.report import Report"),
        ("tools.builtin_models.train", "from tools.builtin_models.card import card"),
    ],
)
def test_import_rule_allows_what_the_layers_are_for(module, source):
    assert offences(frozenset(imported(ast.parse(source), module)), module) == []


def graph() -> dict[str, set[str]]:
    """Give for every file of the package those that it imports, wherever in it."""
    modules = {dotted(path).removesuffix(".__init__"): path for path in FILES}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        if name in {"layerlab", "layerlab.__main__"}:
            continue
        targets = set()
        for one in imports(path):
            targets |= {one if one in modules else one.rpartition(".")[0]} & set(modules)
        found[name] = targets - {name, "layerlab"}
    return found


def reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """Give a file with those that it imports, and what they import in turn."""
    seen, waiting = set[str](), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += edges.get(module, ())
    return seen


def test_no_files_import_each_other_in_a_circle():
    assert TopologicalSorter(graph()).prepare() is None, "it raises where there is a circle"
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_inspection_reaches_neither_training_nor_evaluation():
    parts = {part(module) for module in reached(graph(), "layerlab.cli.inspect")}
    assert "measures" in parts
    assert {"training", "experiments", "evaluation", "adaptation"} & parts == set()


def disordered(edges: Mapping[str, set[str]]) -> list[str]:
    """List the imports of files within a part that are against its order."""
    wrong = []
    for module, targets in edges.items():
        order = WITHIN.get(part(module) or "", "")
        level = {one: n for n, row in enumerate(order.split()) for one in row.split("|")}
        own = _place(module, level)
        for target in targets:
            other = _place(target, level)
            if part(target) == part(module) and own != other and {own, other} <= set(level):
                wrong += [f"{module} imports {target}"] if level[other] >= level[own] else []
    return wrong


def test_a_part_has_an_order():
    assert disordered(graph()) == []


def test_names_in_an_order_are_those_of_folders_and_modules():
    known = {one.removeprefix("layerlab.") for one in graph()}
    for own, order in WITHIN.items():
        names = {f"{own}.{name}" for name in order.replace("|", " ").split()} - {f"{own}.{own}"}
        assert names <= known


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("data.sources", "data.cleaning.ngrams"),
        ("system.files", "system.locks"),
        ("model.config", "model.ecosystem.auto_classes"),
        ("model.ecosystem.export", "model.config"),
        ("variants.norm.dyt", "variants.registry"),
        ("variants.norm.dyt", "variants.residual.depth"),
        ("cli.inspect", "cli.app"),
    ],
)
def test_the_order_of_a_part_can_fail(module, target):
    assert disordered({f"layerlab.{module}": {f"layerlab.{target}"}})


def _place(module: str, names: Iterable[str]) -> str:
    """Give the longest name of an order that a file lies under; else its folder, or its part."""
    _, own, *rest = module.split(".")
    under = [one for one in names if f"{'.'.join(rest)}.".startswith(f"{one}.")]
    return max(under, key=len, default=rest[0] if len(rest) > 1 else own)


def test_no_folder_holds_more_than_one_sees_at_once():
    beside = [path for one in ("tests", "bench", "tools") for path in (ROOT / one).rglob("*.py")]
    counts = Counter(path.parent for path in [*FILES, *beside])
    crowded = {str(one.relative_to(ROOT)): n for one, n in counts.items() if n > MOST}
    assert crowded == {}


def test_quantities_hold_measures_and_nothing_else():
    files = sorted((PACKAGE / "measures" / "quantities").rglob("[a-z]*.py"))
    none = [one.name for one in files if "\nMEASURES = " not in one.read_text("utf-8")]
    assert files and none == []


def test_an_engine_is_imported_in_one_file():
    homes = defaultdict(set)
    for path in FILES:
        for name in imports(path):
            homes[name.split(".")[0]].add(path)
    assert {name: homes[name] for name in IN_ONE_FILE if len(homes[name]) > 1} == {}
    assert homes["lm_eval"], "the rule looks at what is there"


def test_no_function_in_a_package_shares_its_name_with_a_submodule():
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


def test_importing_the_package_and_its_command_line_costs_nothing():
    code = "import sys, layerlab, layerlab.cli.app; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    heavy = {"torch", "transformers", "pandas", "plotly", "numpy", "jaxtyping", "accelerate"}
    assert not heavy & set(loaded.split())


@pytest.mark.full
def test_importing_all_that_is_public_draws_no_random_number():
    code = (
        "import random, layerlab; before = random.getstate(); "
        "[getattr(layerlab, name) for name in layerlab.__all__]; print(random.getstate() == before)"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert told.strip() == "True"


def test_every_file_holds_one_concept():
    assert FILES
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in SOURCES
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_file_is_named_after_a_heap():
    stems = {path.stem.removeprefix("test_"): path for path in SOURCES}
    assert not FORBIDDEN & set(stems)
