"""docs/architecture.md from the code: rooms by their docstrings, layers by the import rule."""

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "layerlab"
TABLE = runpy.run_path(str(ROOT / "docs" / "table.py"))["table"]
RULE = runpy.run_path(str(ROOT / "tests" / "house" / "test_imports.py"))
CHANGES = {
    "a quantity that inspection reads": "`measures/quantities/`, a new file; its name in "
    "`known_names.py`, its options in `known_options.py`",
    "an idea for a block": "`variants/`, by what it changes, a new file; its name, and new options "
    "of parts, in `known_names.py`; what many share: `blocks/`",
    "a model family that is read wrongly": "`observe/architecture/`",
    "a number format": "`numerics/formats/formats.py`, an entry",
    "how an engine computes": "`numerics/profiles/shipped/`, a TOML file; a form in which engines "
    "record: `numerics/recorded/`, a reader",
    "a key of a recipe": "`recipes/training_sections.py`, `comparison_sections.py` or "
    "`adaptation_sections.py`, a field",
    "an optimizer, or a schedule of the learning rate": "`training/optimizer.py` or "
    "`training/lr_schedule.py`; its name: `optimizer` or `lr_scheduler_type` in "
    "`recipes/training_sections.py`",
    "a kind of file that texts come in": "`data/sources.py`, and a file with its reader beside it",
    "a statistic of a comparison": "`experiments/statistics/`, corrections for several tests in "
    "`multiple_comparisons.py`; of a study: `studies/engine/`",
    "a scheduler that carries out runs": "`experiments/executors/`, a file beside `slurm.py`, its "
    "turn in `local.py` and its places in `slots.py`; its name: `executor` in "
    "`recipes/training_sections.py`; what it costs: `experiments/estimate/estimate.py`",
    "a benchmark": "`evaluation/benchmarks/`: `catalog.py`, an entry; `items.py`, its rows as "
    "questions; `suites.py`, where its group is new; `evaluation/tasks/prompts.py`, its prompt; a "
    "score that lm-eval does not have: `evaluation/metrics/`",
    "a way to initialise embeddings": "`adaptation/embeddings/init.py`",
    "a finding of a report": "`report/findings/`, the file of its subject, an entry of `RULES` (a "
    "new subject: its line in `find.py`); an alarm while a model trains: "
    "`training/monitor/rules.py`",
    "a language of the pages": "`report/i18n/locale/`, a folder with a gettext catalogue, which "
    "`python docs/language.py de` begins ([how](add-a-language.md))",
    "a study of a source's claim": "`studies/`, the folder of its source (keys: docs/sources.md), "
    "a new file; its name in `known_names.py`, its options in `known_options.py`",
    "a limit on what strangers send": "`data/archives.py` for what is unpacked, `records/parse.py` "
    "and `system/files.py` for what is read, `system/untrusted/limits.py` for what is run",
    "a check that files are unchanged": "`records/file_digests.py`",
    "a log that another trainer wrote": "`logs/formats/`, a file with its reader; "
    "the ending of its name, and its turn, in `logs/read.py`",
    "a stage of adaptation": "`adaptation/`, a folder; its section in "
    "`recipes/adaptation_sections.py`, its turn in `adaptation/pipeline/`",
    "a figure or a section of a page": "`report/views/` for what is drawn on it, `report/pages/` "
    "for the page that shows it, `report/templates/`; as files beside it: `report/figures/`",
    "a command": "`api/`, its function, exported in `__init__.py`; `cli/`, a file, and its line in "
    "`cli/app.py`",
    "an option of a command": "`cli/` (what several share: `cli/arguments/options.py`), and the "
    "function of `api/` that it calls",
    "the test of any of them": "`tests/`, the same path; what a source states: `tests/claims/`",
}


def architecture() -> str:
    """Write the page."""
    return "\n".join(
        [
            "# Architecture",
            "",
            "Made from the code by `make docs`: each folder says in its `__init__.py` what lies in "
            "it, and the layers are the import rule of `tests/house/test_imports.py`.",
            "",
            "## Where a change goes",
            "",
            TABLE(("change", "place in `layerlab/`"), CHANGES.items()),
            "",
            f"Full folders, in which a new file needs a folder inside first: {_full()}.",
            "",
            "## Layers",
            "",
            "A part imports only from layers of smaller numbers; parts of one layer do not know "
            "each other. Late imports count. No two files import each other in a circle, and no "
            f"folder holds more than {RULE['MOST']} files, `__init__.py` among them: one that is "
            "full gets a folder inside. "
            + _never()
            + " The order within a part is `WITHIN`, beside that rule.",
            "",
            "![The layers from the command line at the top to errors below, with their parts, and "
            "in each part the numbers of its modules that inspect, compare, evaluate and adapt "
            "reach](architecture.svg)",
            "",
            "The numbers show the way of four commands: a command reaches what its file imports, "
            "and what that imports in turn. `blocks` and `variants` are reached by `inspect` "
            "through `plugins`, which loads what a user brings along; training and evaluation are "
            "not.",
            "",
            "## Rooms",
            "",
            TABLE(("folder", "what lies in it", "modules"), _rooms()),
            "",
        ]
    )


def _never() -> str:
    never = RULE["NEVER"]
    building = ", ".join(f"`{one}`" for one in sorted(never["measures"]))
    measuring = ", ".join(f"`{one}`" for one in sorted(never) if one != "report")
    return (
        f"What measures ({measuring}) never imports what we build ({building}), and `report` reads "
        "nothing but readings: no file of it imports a tensor."
    )


def _full() -> str:
    files = {init.parent: len(list(init.parent.glob("*.py"))) for init in _folders()}
    full = [folder for folder, number in files.items() if number >= RULE["MOST"]]
    return ", ".join(f"`{folder.relative_to(PACKAGE).as_posix()}`" for folder in full)


def _folders() -> list[Path]:
    return sorted(PACKAGE.rglob("__init__.py"))


def _rooms() -> Iterator[tuple[str, str, str]]:
    for init in _folders():
        folder = init.parent
        modules = sorted(path.stem for path in folder.glob("*.py") if path.name != init.name)
        about = (ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").splitlines()[0]
        name = folder.relative_to(PACKAGE.parent).as_posix()
        yield f"`{name}`", about, ", ".join(one for one in modules if not one.startswith("__"))
