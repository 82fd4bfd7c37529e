"""Write anew the catalogues of the page's languages: python docs/language.py [CODE ...].

Each layerlab/report/i18n/locale/CODE/LC_MESSAGES/layerlab.po gets the messages that the page has
now and keeps the translations that still fit; a CODE that is new begins a catalogue. The .mo beside
it is what the package reads.
"""

import ast
import json
import re
import runpy
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.catalog import Message as BabelMessage
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from layerlab.measures.measure import Measure
from layerlab.numerics.profiles.profile import list_profiles, load_profile
from layerlab.plugins import list_measures
from layerlab.recipes.training import list_packaged, load_recipe
from layerlab.report.i18n.language import COLUMN, DOMAIN, FOLDER
from layerlab.studies.engine.discovery import studies

PACKAGE = Path(__file__).resolve().parents[1] / "layerlab"
REPORT = PACKAGE / "report"
# Every template, the page of `layerlab inspect` first.
FIRST = ("layout.html", "page.html")
TEMPLATES, STATIC = REPORT / "templates", REPORT / "static"
PAGES = (*FIRST, *sorted({file.name for file in TEMPLATES.glob("*.html")} - set(FIRST)))
SPOKEN = re.compile(r"\b(?:say|parts)\(\s*(\"(?:[^\"\\]|\\.)*\")")
LABELLED = re.compile(r"\blabels?\(\s*((?:\s*\"(?:[^\"\\\n]|\\.)*\",?)+)")
TEXTS = runpy.run_path(str(Path(__file__).with_name("page_texts.py")))["TEXTS"]
# Files of sentences that stand on the pages of training, evaluation and adaptation.
TOLD = (
    *("report/pages/adaptation_tables", "report/pages/evaluation", "report/pages/adaptation"),
    *("report/pages/vocabulary", "report/views/equal_terms", "report/results/text_remarks"),
    *("experiments/analysis/verdict", "experiments/analysis/compare", "experiments/analysis/rows"),
    *(
        "training/monitor/rules",
        "training/step/nonfinite",
        "training/step/microbatch",
        "training/trainer",
    ),
    *("experiments/stored_runs", "experiments/analysis/evidence"),
    *(
        "experiments/judge_logs",
        "experiments/log_remarks",
        "experiments/log_settings",
        "experiments/log_values",
    ),
    *(
        "experiments/analysis/readings/judged_measures",
        "experiments/analysis/readings/run_readings",
    ),
    *("experiments/ladder/compare", "experiments/ladder/sentences", "experiments/ladder/rates"),
    *("evaluation/harness/options", "evaluation/results/paired_difference"),
    *("evaluation/results/averages", "evaluation/results/aggregate", "evaluation/harness/fewshot"),
    *("evaluation/results/question_remarks", "evaluation/results/published_comparison"),
    *(f"adaptation/{name}" for name in ("pipeline/summary", "pipeline/stage", "trainer/lora")),
    *("training/checkpoints/checkpoint", "training/checkpoints/origin", "records/events"),
    *("adaptation/trainer/resume", "tokenization/published_rates", "tokenization/round_trip"),
    *("corpus/streams", "data/shared_files", "data/unread", "data/cleaning/contamination"),
    *("evaluation/paired/sentences", "ledger/campaign", "ledger/judge", "ledger/table"),
    *("evaluation/results/lm_eval_tasks", "evaluation/results/data_issues"),
    *("evaluation/benchmarks/items", "evaluation/lm_eval_tasks/right_answers"),
    *("evaluation/lm_eval_tasks/templates", "experiments/judging"),
    *(f"numerics/profiles/{name}" for name in ("operations", "token_differences", "gap_result")),
    *("numerics/profiles/expert_choices", "adaptation/pretraining/train"),
    *(f"records/index/{name}" for name in ("run", "comparison", "inspection", "evaluation")),
    *(f"records/index/{name}" for name in ("adaptation", "study", "campaign", "search")),
)
# Two words of prose in a row; a template has one at least, beside what is filled in.
PROSE = re.compile(r"[^\W\d_]{2,}.*\s.*[^\W\d_]{2,}")
TEMPLATE = re.compile(r"[^\W\d_]{2,}\s|\s[^\W\d_]{2,}")
WORD = re.compile(r"[a-z]{4,}( [a-z]+)*")
# Texts that no page shows: of expressions, and of functions that take names of columns.
UNSHOWN = {"compile", "rows", "step", "_readings", "groupby", "einsum", "AttentionRecord"}
# What sources claim, as comparisons say it.
CLAIMS = (*("analysis/claims", "analysis/interaction", "analysis/warnings", "plan/factors"),)
# Files of studies that say nothing of a result.
SILENT = {
    *("code_hash.py", "pictures.py", "record.py", "runner.py", "study.py", "suite.py"),
    *("discovery.py", "sampling.py", "reference_transformer.py", "saliency_texts.py"),
}
# Of regular expressions, and of messages to a log.
CODED = re.compile(r"\\d|%[sd]\b")
# A key of docs/sources.md.
CITED = re.compile(r"([a-z]+\d\d|Own)\b")
# Lines of a header that would change every time, or name nobody.
CHANGING = re.compile(
    rb'^"(POT-Creation-Date|PO-Revision-Date|Last-Translator|Language-Team|'
    rb"Report-Msgid-Bugs-To|Generated-By|Project-Id-Version):.*\n",
    re.MULTILINE,
)
EVER = datetime(2026, 1, 1, tzinfo=UTC)
LIKE = 0.7  # from which share of the same letters on a sentence is another one reworded
Message = tuple[str | None, str | tuple[str, str], str]


def labels() -> Iterator[Message]:
    """Yield the fixed texts: of the templates, the scripts, and the declarations of measures."""
    for name in PAGES:
        with (TEMPLATES / name).open("rb") as file:
            for _, _, message, _ in babel_extract(
                file, ("_", "gettext", "ngettext"), (), {"trimmed": "true", "silent": "false"}
            ):
                yield None, _plural(message), name
    for file in sorted(STATIC.glob("*.js")):
        for found in SPOKEN.findall(file.read_text("utf-8")):
            yield None, json.loads(found), file.name
    for file in sorted(REPORT.rglob("*.py")):
        for found in LABELLED.findall(file.read_text("utf-8")):
            words = ast.literal_eval(f"({found.rstrip(',')},)")
            yield from ((None, text, file.name) for text in words if text)
    for place, texts in TEXTS.items():
        yield from ((None, text, place) for text in texts)
    for measure in list_measures().values():
        yield from _declared(measure)


def sentences() -> Iterator[Message]:
    """Yield the sentences about readings: templates with placeholders, as the code writes them."""
    files = sorted((REPORT / "findings").glob("*.py"))
    files += [REPORT / "results" / f"{name}.py" for name in ("source_notes", "older_report")]
    files += [REPORT / "views" / "inspection" / "bars.py"]
    files += [PACKAGE / f"{name}.py" for name in TOLD]
    for part in ("measures", "observe", "loading"):
        files += sorted((PACKAGE / part).rglob("*.py"))
    for file in files:
        rule = REPORT in file.parents
        for phrase in Phrases.of(file.read_text("utf-8"), words=rule):
            yield None, phrase, file.relative_to(PACKAGE).as_posix()
    yield from _claimed()
    claims = [PACKAGE / "experiments" / f"{name}.py" for name in CLAIMS]
    for file in [*claims, *sorted((PACKAGE / "studies").rglob("*.py"))]:
        if file.name not in SILENT:
            for phrase in Phrases.of(file.read_text("utf-8"), words=True):
                if " " in phrase and not CITED.match(phrase):
                    yield None, phrase, file.relative_to(PACKAGE).as_posix()


class Phrases(ast.NodeVisitor):
    """The prose of a file: strings of several words, with `{name}` where something is filled in."""

    def __init__(self, words: bool) -> None:
        self.found: list[str] = []
        self.words = words

    @classmethod
    def of(cls, source: str, *, words: bool) -> list[str]:
        """Return every phrase of a file.

        Args:
            words: take single words too that an alternative puts in; else what a file declares
                in calls at its outermost level is left out.
        """
        visitor = cls(words)
        for node in ast.parse(source).body:
            declared = isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.Call)
            if words or not declared:
                visitor.visit(node)
        return visitor.found

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func).split(".")[-1]
        if called not in UNSHOWN and not called.endswith("Error"):
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "severity":
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        for side in (node.body, node.orelse):
            self.visit(side)
            if self.words and isinstance(side, ast.Constant) and WORD.fullmatch(str(side.value)):
                self.found.append(str(side.value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        written, names = "", list[str]()
        for part in node.values:
            if isinstance(part, ast.Constant):
                written += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                names.append(_numbered(_named(part.value), names))
                written += f"{{{names[-1]}}}"
                self.visit(part.value)
        if TEMPLATE.search(re.sub(r"\{\w+\}", "0", written)):
            self.found.append(written)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if isinstance(text, str) and PROSE.search(text) and "\n" not in text:
            if not CODED.search(text):
                self.found.append(text)


def _named(node: ast.AST) -> str:
    """Return the name of a placeholder: the last name that stands in its expression."""
    match node:
        case ast.Name():
            return node.id.lower().lstrip("_")
        case ast.Attribute():
            return node.attr.lower().strip("_")
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key if key.isidentifier() else "value"
        case ast.Subscript():
            return _named(node.value)
        case ast.BinOp():
            return _named(node.right if isinstance(node.left, ast.Constant) else node.left)
        case ast.Call(func=ast.Name(id=name)) if name.startswith("_"):
            return name.lstrip("_")
        case ast.Call(args=[first, *_]):
            return _named(first)
        case ast.Call(func=ast.Attribute(value=inner)):
            return _named(inner)
    return "value"


def _numbered(name: str, taken: list[str]) -> str:
    found = [name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))]
    return next(one for one in found if one not in taken)


def _plural(message: str | tuple[str | None, ...]) -> str | tuple[str, str]:
    if isinstance(message, str):
        return message
    # Behind the texts of a call stand those of its other arguments, which are none.
    singular, *plural = [part for part in message if part is not None]
    return (singular, plural[0]) if plural else singular


def _declared(measure: Measure) -> Iterator[Message]:
    place = f"measures/{measure.name}"
    band = () if measure.band is None else (measure.band.label,)
    for text in (measure.title, measure.about, measure.unit, *measure.columns.values(), *band):
        yield None, text, place
    if any(bound.source == "Own" for bound in measure.bound):
        yield None, "Own", place
    for name in (*measure.per, *measure.columns):
        yield COLUMN, name, place


def _claimed() -> Iterator[Message]:
    """Yield what studies, profiles and recipes are about, and what their sources claim."""
    for study in studies().values():
        # A verdict's unit is that with its number.
        for text in (study.title, study.claim, study.unit, f"{{draws}} {study.unit}"):
            yield None, text, f"studies/{study.name}"
    for name in list_profiles():
        yield None, load_profile(name).description, f"profiles/{name}"
    for name in list_packaged():
        recipe = load_recipe(name)
        claims = () if recipe.compare is None else recipe.compare.claims
        told = recipe.compare and recipe.compare.published and recipe.compare.published.note
        for text in (
            recipe.about,
            recipe.inferred,
            *(claim.statement for claim in claims),
            told or "",
        ):
            if text:
                yield None, text, f"recipes/{name}"


def template() -> Catalog:
    """Return all messages as they are now, the labels first."""
    catalogue = Catalog(project=DOMAIN, charset="utf-8", fuzzy=False)
    for found in (labels(), sentences()):
        for context, message, place in found:
            if message and message not in {"", " "}:
                catalogue.add(message, context=context, locations=[(place, 0)])
    for message in catalogue:
        if message.id and re.search(r"\{\w+\}", str(message.id)):
            message.flags.add("python-brace-format")
    return catalogue


def written(catalogue: Catalog) -> bytes:
    """Return the text of a .po file."""
    buffer = BytesIO()
    # Where a message comes from changes more often than what it says; `template` finds it anew.
    write_po(buffer, catalogue, width=100, no_location=True, ignore_obsolete=True)
    return CHANGING.sub(b"", buffer.getvalue())


def compiled(catalogue: Catalog) -> bytes:
    """Return the content of a .mo file; unsure translations are left out."""
    buffer = BytesIO()
    write_mo(buffer, catalogue)
    return buffer.getvalue()


def stored(file: Path) -> Catalog:
    """Return the catalogue of a .po file."""
    with file.open("rb") as source:
        catalogue = read_po(source, locale=file.parts[-3], domain=DOMAIN)
    catalogue.creation_date = catalogue.revision_date = EVER
    return catalogue


def update(catalogue: Catalog, now: Catalog) -> None:
    """Give a catalogue the messages as they are now.

    A reworded sentence gets the translation of the one like it that went, marked as unsure.
    """
    catalogue.update(now, no_fuzzy_matching=True)
    texts = (one for one in catalogue.obsolete.values() if isinstance(one.id, str))
    gone = {str(one.id): one for one in texts if one.string}
    for one in catalogue:
        if isinstance(one.id, str) and one.id and not one.string:
            for like in get_close_matches(one.id, gone, 1, LIKE):
                one.string, one.previous_id = gone[like].string, [like]
                one.flags.add("fuzzy")


def unsettled(catalogue: Catalog) -> Iterator[BabelMessage]:
    """Yield the messages that have no translation, or one that somebody has to look at."""
    return (one for one in catalogue if one.id and (one.fuzzy or not all(one.string or [""])))


def main(codes: list[str]) -> None:
    """Bring every catalogue up to date, and begin those of `codes`."""
    known = [file.parts[-3] for file in FOLDER.glob(f"*/*/{DOMAIN}.po")]
    for code in sorted({*known, *codes}):
        file = FOLDER / code / "LC_MESSAGES" / f"{DOMAIN}.po"
        file.parent.mkdir(parents=True, exist_ok=True)
        now = template()
        if file.exists():
            catalogue = stored(file)
            update(catalogue, now)
        else:
            now.locale = code
            catalogue = now
        file.write_bytes(written(catalogue))
        file.with_suffix(".mo").write_bytes(compiled(stored(file)))
        left = list(unsettled(catalogue))
        print(f"{file}: {len(catalogue)} messages, {len(left)} without a sure translation")
        for one in left:
            known = f" (was: {one.previous_id[0]!r})" if one.previous_id else ""
            print(f"  {one.locations[0][0]}: {one.id!r}{known}")


if __name__ == "__main__":
    main(sys.argv[1:])
