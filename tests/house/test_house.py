"""What is promised about texts: docstrings, declarations, sources, errors, generated pages."""

import ast
import re
import runpy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerlab.plugins import list_measures

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "layerlab"
# Here each public function says whose it is; elsewhere one that has a source names it.
QUANTITIES = ("measures/quantities", "numerics/theory")
FOLDERS = ("layerlab", "tests", "bench", "docs", "examples", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".html", ".js", ".css", ".json", ""}
KEY = re.compile(r"\b[a-z]+\d{2}\b")
# Written apart, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE = re.compile(r"(?<![\w.~])/(work|ro" + r"ot|home/\w+)/")


def sources() -> set[str]:
    table = (ROOT / "docs" / "sources.md").read_text("utf-8")
    return set(re.findall(r"^\| ([a-z]+\d{2}) \|", table, re.MULTILINE))


def unresolved(statement: str, known: set[str]) -> str | None:
    """Why a statement of a source names none, or None where it does."""
    keys = set(KEY.findall(statement))
    if keys - known:
        return f"not in docs/sources.md: {sorted(keys - known)}"
    if not keys and not re.search(r"\bOwn\b", statement):
        return f"neither a key nor Own: {statement!r}"
    return None


def stated(doc: str) -> list[str]:
    """What a docstring says of sources, line breaks and all."""
    pattern = r"^Source: (.+?)(?=\n\s*\n|\n[A-Z]\w+:|\Z)"
    return re.findall(pattern, doc, re.MULTILINE | re.DOTALL)


def undocumented(source: str, known: set[str]) -> list[str]:
    """Public functions of a file whose docstring names no source that can be found."""
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        said = stated(ast.get_docstring(node) or "")
        why = unresolved(said[0], known) if said else "no line 'Source: ...'"
        found += [f"{node.name}: {why}"] if why else []
    return found


def misattributed(source: str, known: set[str]) -> list[str]:
    """Statements of sources, wherever a file has a docstring, that name none that can be found."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = (
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds)
    )
    return [why for doc in docs for said in stated(doc) if (why := unresolved(said, known))]


def sentences(text: str) -> int:
    """A sentence ends in a stop before white space and a capital or a digit, or at the end."""
    return len(re.findall(r"[.!?](?=\s+[A-Z0-9]|\s*$)", text))


def texts() -> Iterator[tuple[Path, str]]:
    """Every text of the project."""
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    beside = [path for path in ROOT.iterdir() if path.name not in {".git", ".coverage"}]
    for path in sorted({*inside, *beside}):
        # The page of a comparison whose results are kept is made, and never committed.
        made = "__pycache__" in path.parts or path.name in {"report.html", "log.txt"}
        if path.is_file() and path.suffix in TEXT and not made:
            yield path, path.read_text("utf-8")


def quantities() -> list[Path]:
    return [path for folder in QUANTITIES for path in sorted((PACKAGE / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", quantities(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_quantities_name_their_source(path):
    assert undocumented(path.read_text("utf-8"), sources()) == []


def test_a_source_that_is_named_can_be_found():
    known = sources()
    wrong = {
        str(path.relative_to(PACKAGE)): found
        for path in PACKAGE.rglob("*.py")
        if "Source: " in (text := path.read_text("utf-8")) and (found := misattributed(text, known))
    }
    assert not wrong


@pytest.mark.parametrize(
    "doc",
    [
        "",
        "One sentence.",
        "A.\n\n    Source: nobody99, Def. 1.\n    ",
        "A.\n\n    Source: a book.\n",
    ],
)
def test_docstring_rule_can_fail(doc):
    assert undocumented(f'def f():\n    """{doc}"""\n', sources())
    inside = f'class A:\n    def _f():\n        """{doc}"""\n'
    assert bool(misattributed(inside, sources())) == ("Source" in doc)


@pytest.mark.parametrize(
    "doc",
    [
        "A.\n\n    Source: Own.\n    Unit: none.\n    ",
        "A.\n\n    Source: pangu23, Theorem 1; dong21,\n    section 2.\n\n    Raises: x.\n    ",
    ],
)
def test_docstring_rule_accepts_a_key_or_own(doc):
    assert undocumented(f'def f():\n    """{doc}"""\n', sources()) == []


@pytest.mark.parametrize("measure", list_measures().values(), ids=lambda measure: measure.name)
def test_measure_says_what_it_is(measure):
    assert re.fullmatch(r"[a-z]+", measure.name)
    for text in (measure.title, measure.unit, measure.equation):
        assert text.strip()
    assert sentences(measure.about) == 2, measure.about
    assert unresolved(measure.source, sources()) is None
    assert all(meaning.strip() for meaning in measure.columns.values())
    assert measure.plot and set(measure.plot) <= set(measure.columns)
    assert set(measure.roles) <= set(measure.columns) - set(measure.plot)
    assert set(measure.limits) <= set(measure.columns) - set(measure.plot)
    assert not set(measure.per) & set(measure.columns)
    for bound in measure.bound:
        assert {bound.column, bound.limit} <= set(measure.columns)
        assert unresolved(bound.source, sources()) is None


def test_sentences_are_counted_through_figures_and_abbreviations():
    assert sentences("A norm of 1.5, i.e. small, is fine. 0 means collapse.") == 2
    assert sentences("One only") == 0


@pytest.mark.full
def test_every_source_is_used_somewhere():
    used = {key for path, text in texts() if path.name != "sources.md" for key in KEY.findall(text)}
    assert sources() - used == set()


def test_generated_pages_are_what_the_declarations_say():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    old = [path.name for path, text in generated.items() if path.read_text("utf-8") != text]
    assert old == [], "type: make docs"
    left = {*(ROOT / "docs" / "measures").glob("*.md")} - set(generated)
    assert left == set(), "pages of measures that are gone"


def test_every_setting_of_a_recipe_is_explained():
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    table = page.partition("<!-- settings:")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*?) ?\|$", table, re.MULTILINE)
    assert len(rows) > 60
    assert [name for name, meaning in rows if not meaning.strip()] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.full
def test_nothing_is_left_unfinished_and_no_machine_is_named():
    for path, text in texts():
        assert not UNFINISHED.search(text), path
        assert not MACHINE.search(text), path


def test_links_between_documents_lead_somewhere():
    for path, text in texts():
        if path.suffix == ".md":
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def complaints(source: str) -> Iterator[list[list[str]]]:
    """Every text that a file gives to UserError, as runs of words between what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called(node) == "UserError":
            for whole in node.args[:1]:
                parts = whole.values if isinstance(whole, ast.JoinedStr) else [whole]
                written = [
                    str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts
                ]
                yield [words(piece) for piece in "".join(written).split("\0") if words(piece)]


def _called(call: ast.Call) -> str:
    """The last word of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def heard() -> str:
    """All string literals of the tests, as words between single spaces."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if any(one in text for one in ("UserError", "tests.support.refused", "stderr")):
            found += [
                node.value
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    return " " + " ".join(words(" ".join(found))) + " "


def unheard(source: str, tests: str) -> list[str]:
    """Texts of UserErrors of which no test has three words in a row (or all, where shorter)."""
    found = []
    for pieces in complaints(source):
        length = min(3, max(map(len, pieces), default=0))
        phrases = {
            " ".join(piece[start : start + length])
            for piece in pieces
            for start in range(len(piece) - length + 1)
        }
        if length and not any(f" {phrase} " in tests for phrase in phrases):
            found.append(" ... ".join(map(" ".join, pieces)))
    return found


@pytest.mark.full
def test_every_error_a_user_can_mend_is_tested_on_its_text():
    tests = heard()
    missing = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "UserError" in path.read_text("utf-8")
        for text in unheard(path.read_text("utf-8"), tests)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.full
def test_every_error_that_is_explained_can_be_met():
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    files = [*sorted(PACKAGE.rglob("*.py")), ROOT / "Makefile"]
    spoken = f" {' '.join(words(' '.join(path.read_text('utf-8') for path in files)))} "
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 20
    for message in quoted:
        said = words(re.sub(r"\d+", "...", message))
        runs = [" ".join(said[start : start + 2]) for start in range(len(said) - 1)]
        assert any(f" {run} " in spoken for run in runs), message


def test_an_untested_error_would_be_found():
    source = 'raise UserError(f"the {colour} moon is full; expected a new one")'
    assert unheard(source, " some words of a test ")
    assert not unheard(source, " moon is full ")


def ambiguous(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of classes and of aliases of types that more than one file defines."""
    homes = defaultdict(list)
    for home, source in sources.items():
        defined = r"^(?:class (\w+)|(_?[A-Z]\w*[a-z]\w*)(?:: TypeAlias)? = )"
        for name in {one or other for one, other in re.findall(defined, source, re.MULTILINE)}:
            homes[name].append(home)
    return {name: homes[name] for name in sorted(homes) if len(homes[name]) > 1}


def test_a_type_has_a_name_of_its_own():
    files = sorted(PACKAGE.rglob("*.py"))
    assert ambiguous({str(one.relative_to(ROOT)): one.read_text("utf-8") for one in files}) == {}


@pytest.mark.parametrize("other", ["class Aim(A):", "Aim = dict[str, int]", "Aim: TypeAlias = A"])
def test_a_name_of_two_meanings_would_be_found(other):
    files = {"one.py": "class Aim:\n    pass\n", "two.py": other}
    assert ambiguous(files) == {"Aim": ["one.py", "two.py"]}
    assert ambiguous(files | {"two.py": other.replace("Aim", "Goal")}) == {}


# Participles of irregular verbs that a name could begin with, and words that only look like one.
IRREGULAR = frozenset(
    (
        "been begun bought brought built caught chosen dealt done drawn driven fed felt found "
        "given gone grown heard held hung kept known laid led left lent lost made meant met paid "
        "said seen sent shown sold sought spent spoken struck sung sunk taken taught thought told "
        "understood won worn written"
    ).split()
)
NO_PARTICIPLES = frozenset(
    "between children eigen embed even feed flatten listen open reseed seed sharpen shorten speed "
    "token uneven widen".split()
)
PARTICLES = frozenset("above at back by for from in of off on once out to up".split())
# What is public by docs/api.md, what a block of one's own calls or overrides, and a term:
# the mixed condition number, mixed precision.
NAMED_OTHERWISE = {
    "blocks/attention.py": {"joined"},
    "blocks/context.py": {"kept", "placed"},
    "blocks/operations/stream.py": {"kept"},
    "blocks/part.py": {"given"},
    "blocks/spec.py": {"given"},
    "measures/measure.py": {"given"},
    "measures/quantities/low_precision/condition.py": {"mixed"},
    "model/cost/match.py": {"matched"},
    "numerics/theory/condition_numbers.py": {"mixed"},
    "numerics/theory/roundoff_model.py": {"mixed"},
    "studies/engine/study.py": {"settled"},
    "variants/attention/gated.py": {"joined"},
    "variants/feedforward/siaf.py": {"given"},
    "variants/residual/shortcut.py": {"given"},
}


def participles(source: str) -> list[str]:
    """Functions of a file, properties aside, whose name is a participle without a noun."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = [ast.unparse(one) for one in node.decorator_list]
        first, *rest = node.name.strip("_").split("_")
        if node.name.endswith("__") or any("property" in one for one in decorators):
            continue
        if first in IRREGULAR or (first.endswith(("ed", "en")) and first not in NO_PARTICIPLES):
            found += [node.name] if set(rest) <= PARTICLES else []
    return found


@pytest.mark.full
def test_functions_are_not_named_by_bare_participles():
    found = {
        name: names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := set(participles(path.read_text("utf-8"))))
        and (name := path.relative_to(PACKAGE).as_posix())
    }
    assert found == NAMED_OTHERWISE, "name a function by what it does, or by what it returns"


def test_a_bare_participle_would_be_found():
    source = "def {}(x):\n    return x\n"
    for name in ("checked", "_kept", "drawn_from", "left_out"):
        assert participles(source.format(name)) == [name]
        assert participles("@property\n" + source.format(name)) == []
    for name in ("check", "embed", "kept_texts", "widen", "spectrum"):
        assert participles(source.format(name)) == []


QUESTION = re.compile(r"(What|Who|Whose|Whether|How|Which|Where|When|Why)\b")


def questions(source: str) -> list[str]:
    """Return what of a file, by its name, has a docstring that opens as a question would."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    asking = [one for one in nodes if QUESTION.match(ast.get_docstring(one) or "")]
    return [getattr(one, "name", "the module") for one in asking]


@pytest.mark.full
def test_no_docstring_opens_as_a_question():
    """A class and a module are said by a noun, a function by a verb."""
    found = {path: questions(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == {}
    for place, name in (("", "the module"), ("class A:\n ", "A"), ("async def f():\n ", "f")):
        assert questions(f'{place}"""What it came to."""') == [name]
        assert questions(f'{place}"""Whatever comes."""') == []


@pytest.mark.full
def test_what_gives_true_or_false_is_said_to_return_whether():
    """Who judges gives a verdict or a score, who tells gives a text."""
    kinds = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if ast.unparse(node.returns) in ("bool", "bool | None")
        if re.match(r"(?!Return)\w+ whether\b", ast.get_docstring(node) or "")
    ]
    assert kinds == []
