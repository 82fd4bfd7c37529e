"""The guide does what it says: the blocks of its pages run, each page in the folder of a reader.

A page's recipes are read and saved, then its commands are typed in order, and its programs are one
session after them. What would take long is made small by the table `SMALLER`, and by `MORE` of the
shell; what cannot run here is named in its table `NAMED`, with the reason, and checked as far as it
can be.
"""

import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from layerlab.evaluation.benchmarks.suites import select_benchmarks
from layerlab.experiments.analysis.interaction import find_interactions
from layerlab.experiments.plan.ladder import plan_rungs
from layerlab.experiments.plan.plan import plan
from layerlab.recipes import adaptation, training
from layerlab.recipes.compared_measures import parse_measure
from layerlab.records.renamed_settings import NAMES, current_settings
from layerlab.studies.engine.discovery import studies
from layerlab.training.run_spec import RunSpec
from tests.docs import test_tutorials
from tests.support.reader import reader
from tests.support.shell import MORE, NAMED, Shell, begins, correct, lines
from tests.training.support.drawn import EXTENT

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "console", "sh"}
# Pages whose steps another test runs.
ELSEWHERE = {
    *test_tutorials.PROMISED,
    "zh/start.md",  # test_tutorials: the same steps
    "add-a-variant.md",  # test_add_a_variant
    "examples.md",  # test_examples; test_house: the page holds the files
}
# What a page's steps print, or leave, that shows that they did what the page says.
PROMISED = {
    "adaptation.md": (
        *("yunshan-mini", "of training left", "evaluate after tune (no replay)"),
        *("adaptations/mine/report.html", "adaptations/mine/result.json", "no replay, forgetting"),
        *("out of reach: 0", "jec-qa", "only joined", "words/proof.json", "words/tokenizer.json"),
        *("bits per byte, law.txt", "mean-resizing", "grown/config.json"),
        *("What is left: cleaned/text.jsonl", "cleaned/report.json", "held  covered"),
        *("LawBench 1-2 and 3-6 are taken from JEC-QA", "unconfirmed"),
        *(
            "the last model: LlamaForCausalLM",
            "scores: after arms title",
            "began as mean",
            "tuned/model/config.json",
            "run/model/config.json",
        ),
    ),
    "comparison.md": (),
    "evaluation.md": (
        *("put it in agieval", "PIQA", "BoolQ", "published", "measured here", "LawBench"),
        *("results/results.json", "results/tables/benchmarks.csv", "forgetting"),
        *(
            "subjects: task benchmark subject",
            "0 <= score <= 1: True",
            "| - actuary_fin_math ",
            "| - 2-1 Document Proofreading ",
        ),
        *("ms per token", "fewer-layers, fewer layers, one vocabulary", "1: gpt2", "2: my/model"),
        *("Not above chance: colours (acc, acc_norm)", "colours/results.json"),
    ),
    "monitor.md": ("update layer head measure value", "readings at [0, 2]", "stream_norm"),
    "precision.md": (
        *("policy.toml", "alone leaves", "together", "FLOPs", "within the budget of 0.3"),
        *("emulated: True", "by hand: float32 float32 bfloat16"),
    ),
    "results/README.md": (),
    "scale.md": ("layerlab-runs/smoke/runs/llama-s0-r0.005-",),
    "training.md": (
        *("FLOPs", "bits per byte", "two runs: 2"),
        *("recipe.json", "manifest.json", "events.jsonl", "result.json", "report.html", "tables"),
    ),
    "what-holds.md": (),
}
# A page's words, and those in their place.
SMALLER: Mapping[str, Mapping[str, str]] = {
    "adaptation.md": {
        "+1600": "+8",
        "texts, 1600": "texts, 8",
        "tokens = 10_000_000": "tokens = 512\nbatch_size = 4\nblock_size = 32",
        "seeds = [1, 2, 3]": "seeds = [1]",
        'lawbench,financeiq,ceval"': 'financeiq,ceval"\nlimit = 1\nafter = ["base", "tune"]',
        "tokens=1_000_000": "tokens=512",
        "100_000}": "512}",
        "tokens=10_000_000, batch_size=16": "tokens=512, batch_size=4, block_size=32",
    },
    "evaluation.md": {"width=1024,layers=12": "width=64,layers=2", "--width 1024": "--width 128"},
    "monitor.md": {"every=100": "every=2"},
    "training.md": {
        "width = 128": "width = 16",
        "layers = 4": "layers = 1",
        '"python-docs" }]': '"python-docs", limit = 20_000 }]\nvocab_size = 300',
        "max_steps = 200": "max_steps = 2",
        "batch_size = 16": "batch_size = 2",
    },
}
# What a page takes for granted, before its first program.
BEFORE: Mapping[str, str] = {
    "adaptation.md": """
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("my/model")
words = AutoTokenizer.from_pretrained("my/model")
texts = Path("law.txt").read_text("utf-8").splitlines()
""",
    "monitor.md": """
import torch
from transformers import AutoModelForCausalLM
import layerlab
model = AutoModelForCausalLM.from_pretrained("my/model")
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.arange(32).reshape(2, 16)
data = 4 * [{"input_ids": tokens, "labels": tokens}]
""",
    "precision.md": "import torch\ninput_ids = torch.tensor([[1, 2, 3]])\n",
}
# What is asked after its last one.
AFTER: Mapping[str, str] = {
    "adaptation.md": """
print("the last model:", type(adapted.model("no replay")).__name__)
print("scores:", *adapted.frame("scores").columns)
""",
    "evaluation.md": """
print("subjects:", *found.frame("subjects").columns)
print("0 <= score <= 1:", 0 <= found.score("piqa") <= 1)
""",
    "monitor.md": """
frame = monitor.frame()
print(*frame.columns)
print("readings at", sorted({int(one) for one in frame["update"]}), *set(frame["measure"]))
assert not monitor.alarms and not monitor.notes
""",
    "precision.md": """
print("emulated:", bool(logits.isfinite().all()))
model = AutoModelForCausalLM.from_pretrained("MODEL", dtype=torch.float32)
model = layerlab.apply_precision(model, layerlab.load_policy("by-hand.toml"))
kept = (model.lm_head, model.model.norm, model.model.layers[0].mlp.up_proj)
print("by hand:", *(str(one.weight.dtype).removeprefix("torch.") for one in kept))
""",
    "training.md": """
from pathlib import Path
runs = [one.parent for one in Path("layerlab-runs/mine/runs").glob("*/result.json")]
print("two runs:", len(runs), *(one.name for one in runs[0].iterdir()))
""",
}
Table = Mapping[str, Any]
Follow = Callable[[str], tuple[Path, str]]


def planned(table: Table) -> list[RunSpec]:
    """A recipe of training; where only some sections are shown, with a length of its own."""
    return plan(training.make_recipe({"train": {"max_steps": 1}, **table}), EXTENT)


def compared(table: Table) -> None:
    """Arms that can be built and matched, at all rates, with all seeds."""
    runs = planned(table)
    assert {one.arm for one in runs} == {"llama", "pangu-pi", "pangu-pi-4"}
    assert len(runs) == 3 * 3 * 5


def crossed(table: Table) -> None:
    """Two blocks under two optimizers, of which a comparison tells whether a gain holds."""
    recipe = training.make_recipe({"train": {"max_steps": 1}, **table})
    assert recipe.compare is not None
    (found,) = find_interactions(recipe, recipe.compare)
    assert found.under == ("adamw", "muon") and len(planned(table)) == 4 * 3 * 3


def looked(table: Table) -> None:
    """Looks, in a comparison of two arms."""
    assert planned({"compare": {"arms": ["llama", "gpt2"], **table["compare"]}})


def scored(table: Table) -> None:
    """A suite that there is, and a command that is told its model."""
    section = training.make_recipe(
        {"train": {"max_steps": 1}, "compare": {"arms": ["llama", "gpt2"], **table["compare"]}}
    ).compare
    assert section is not None
    suite, command = map(parse_measure, section.measures)
    assert [one.name for one in select_benchmarks(suite.name)] == ["piqa", "boolq"]
    assert section.is_higher_better(f"command:{command.name}")


def climbed(table: Table) -> None:
    """Sizes that a model of the package can be built at, rising as they are written."""
    compare = {"arms": ["llama", "pangu-pi"], "seeds": [1, 2, 3]}
    given = {"model": {"heads": 16}, "train": {"max_steps": 4}, "compare": compare, **table}
    found = plan_rungs(training.make_recipe(given), EXTENT)
    assert [one.wanted for one in found] == [1e6, 3e6, 1e7]
    assert all(one.tokens == 20 * one.parameters for one in found)


def claimed(table: Table) -> None:
    """Claims, in a comparison of the arms that they are about."""
    (claim,) = table["compare"]["claims"]
    arms = [name for names in claim["arms"] for name in names]
    assert planned({"compare": {"arms": arms, "seeds": [1, 2], **table["compare"]}})


def taken(table: Table) -> object:
    """A policy, which `AFTER` loads and applies."""
    return table["keep"]


# Who reads each recipe of a page.
READ: Mapping[str, Sequence[Callable[[Table], object]]] = {
    "adaptation.md": (adaptation.make_recipe,),
    "comparison.md": (compared, crossed, looked, scored, climbed, claimed),
    "precision.md": (taken,),
    "scale.md": (planned,),
    "training.md": (planned,),
}
# The file that it is saved in, where that is not mine.toml.
SAVED = {"precision.md": "by-hand.toml"}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and content of every block that is not plain text."""
    found = BLOCK.findall((DOCS / page).read_text("utf-8"))
    return [(language, code) for language, code in found if language != "text"]


def contents(page: str, languages: Set[str]) -> list[str]:
    return [code for language, code in blocks(page) if language in languages]


def smaller(page: str, code: str) -> str:
    for words, others in SMALLER.get(page, {}).items():
        code = code.replace(words, others)
    return code


@pytest.fixture(scope="module")
def follow(tmp_path_factory: pytest.TempPathFactory) -> Follow:
    """Do what a page says, once: the folder of the reader, and all that was printed."""
    prepared = tmp_path_factory.mktemp("prepared")
    reader(prepared)

    @cache
    def done(page: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("reader")
        shutil.copytree(prepared, folder, symlinks=True, dirs_exist_ok=True)
        for read, code in zip(READ.get(page, ()), contents(page, {"toml"}), strict=True):
            read(tomllib.loads(code))
            (folder / SAVED.get(page, "mine.toml")).write_text(smaller(page, code), "utf-8")
        shell = Shell(folder)
        printed = []
        for code in contents(page, SHELLS):
            correct(code)
            printed += map(shell.type, lines(smaller(page, code)))
        programs = [smaller(page, code) for code in contents(page, {"python"})]
        session = [BEFORE.get(page, ""), *programs, AFTER.get(page, "")]
        if any(session):
            printed.append(shell.interpret("-c", "\n".join(session)))
        return folder, "\n".join(printed)

    return done


@pytest.mark.full
@pytest.mark.parametrize("page", PROMISED)
def test_the_blocks_run_and_show_what_the_page_says(page, follow):
    folder, printed = follow(page)
    for promised in PROMISED[page]:
        assert promised in printed or (folder / promised).is_file(), f"{promised}\n{printed}"


def test_every_block_of_every_page_is_followed():
    found = {
        path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in DOCS.rglob("*.md")
    }
    for page, text in found.items():
        fences = re.findall(r"^\s*(?:```|~~~).*$", text, re.MULTILINE)
        if page not in ELSEWHERE:
            assert len(fences) == 2 * len(BLOCK.findall(text)), f"{page}: a block of another form"
    held = {page for page in found if blocks(page)}
    assert held - ELSEWHERE - {f"studies/{name}.md" for name in studies()} == set(PROMISED)
    for page in PROMISED:
        languages = [language for language, _ in blocks(page)]
        assert set(languages) <= {*SHELLS, "python", "toml"}
        assert languages.count("toml") == len(READ.get(page, ()))


@pytest.mark.full
def test_a_study_is_repeated_by_what_its_page_says(tmp_path):
    pages = sorted((DOCS / "studies").glob("*.md"))
    assert len(pages) > 30
    for page in pages:
        ((language, code),) = blocks(f"studies/{page.name}")
        typed = lines(code)
        assert language == "sh" and len(typed) == 2
        for line in typed:
            assert shlex.split(line)[2] == page.stem
            Shell(tmp_path).type(line)


def test_recipes_of_the_guide_have_the_names_of_today():
    found: list[str] = []
    for page in [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "tutorials").glob("*.md"))]:
        text = page.read_text("utf-8").partition("<!-- settings")[0]
        for kind, _, code in test_tutorials.BLOCK.findall(text):
            if kind == "toml":
                current_settings(tomllib.loads(code), found)
        for table, names in NAMES.items():
            there = rf"\[{re.escape(table)}\]\s+|[\"'` ]{re.escape(table)}\."
            named = re.findall(rf"(?:{there})({'|'.join(names)}) ?[=`]", text)
            found += [f"{page.name}: {table}.{name}" for name in named if table]
    assert found == []


def test_what_a_contributor_types_is_there(tmp_path):
    typed = [code for _, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))]
    assert len(typed) == 1
    for line in lines(typed[0]):
        Shell(tmp_path).type(line)


def test_no_entry_of_a_table_is_of_a_block_that_is_gone():
    for page, table in SMALLER.items():
        code = "".join(code for _, code in blocks(page))
        assert [words for words in table if words not in code] == []
    typed = [line for page in PROMISED for code in contents(page, SHELLS) for line in lines(code)]
    for table in (MORE, NAMED):
        used = {words for line in typed for words in begins(line, table)}
        assert used == set(table)


@pytest.mark.parametrize(
    "line",
    [
        "rm -r runs",
        "layerlab study no-such-study",
        "layerlab study sizes --quick",
        "pip install '.[nothing]'",
        "make nothing",
        "srun bash -c 'accelerate launch --no_such_option 1 program.py'",
        "srun bash -c 'accelerate launch -m layerlab.training.nothing FOLDER'",
        "torchrun --no_such_option 1 program.py",
    ],
)
def test_what_is_wrong_is_found_without_running_it(line, tmp_path):
    with pytest.raises((AssertionError, SystemExit, typer.TyperException)):
        Shell(tmp_path).type(line)
