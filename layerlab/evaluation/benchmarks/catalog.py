"""The benchmarks of the sources, each declared once.

Eleven general ones, two of finance and one of law (pangu23, sections 5.3 and 6.4). A declaration
says where a benchmark's files lie, which of its splits is scored, how its official average is made
and what its licence is; the data themselves are never part of the package. `group` is the heading
of the source's tables, so that the group means can be taken.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.spec import Benchmark, subjects
from layerlab.validation import short_repr, suggest

_THREE = ("dev", "val", "test")
_CLUE = {
    "licence": "none is stated; for research",
    "source": "github.com/CLUEbenchmark/FewCLUE",
    "files": {"dev": ("dev_few_all.json",), "test": ("test_public.json",)},
}
_SUPERGLUE = {
    "language": "en",
    "options": 2,
    "source": "super.gluebenchmark.com",
    "hub": "aps/super_glue",
    "folder": "superglue",
}


def _declare(name: str, title: str, **own: Any) -> Benchmark:
    """Return a benchmark, in Chinese, of JSON lines in a folder of its name where it is no other.

    Its subjects are those of the table.
    """
    usual = {"language": "zh", "folder": name, "form": "jsonl", "subjects": subjects(name)}
    return Benchmark(name=name, title=title, **{**usual, **own})


def _examine(name: str, title: str, file: str, splits: Sequence[str], **own: Any) -> Benchmark:
    """Return a benchmark of questions with four options, in a table for each subject and split.

    Five examples come from the split "dev".
    """
    usual = {
        "group": "examination",
        "shots_split": "dev",
        "shots": 5,
        "most_shots": 5,
        "scorings": ("choice_ll", "mean_nll", "gen"),
        "form": "csv",
        "files": {split: (file.replace("{split}", split),) for split in splits},
    }
    return _declare(name, title, **{**usual, **own})


CEVAL = _examine(
    "ceval",
    "C-Eval",
    "{split}/{file}_{split}.csv",
    _THREE,
    split="val",
    rows=1_346,
    explained=True,
    licence="CC BY-NC-SA 4.0",
    source="github.com/hkust-nlp/ceval",
    hub="ceval/ceval-exam",
    hub_files=("ceval-exam.zip",),
)
CMMLU = _examine(
    "cmmlu",
    "CMMLU",
    "{split}/{file}.csv",
    ("dev", "test"),
    split="test",
    rows=11_582,
    licence="CC BY-NC-SA 4.0",
    source="github.com/haonan-li/CMMLU",
    hub="haonan-li/cmmlu",
    hub_files=("cmmlu_v1_0_1.zip",),
)
MMLU = _examine(
    "mmlu",
    "MMLU",
    "{split}/{file}_{split}.csv",
    _THREE,
    language="en",
    split="test",
    rows=14_042,
    licence="MIT",
    source="github.com/hendrycks/test",
    hub="cais/mmlu",
    form="headless",
)
AGIEVAL = _declare(
    "agieval",
    "AGIEval",
    group="examination",
    split="test",
    rows=8_269,
    metric="accuracy; exact match where there are no options",
    options=0,
    licence="MIT; JEC-QA, LSAT and others keep their own terms",
    source="github.com/ruixiangcui/AGIEval",
    hub="hails/agieval-{subject}",
    files={"test": ("v1/{file}.jsonl",)},
)
BOOLQ = _declare(
    "boolq",
    "BoolQ",
    group="knowledge",
    split="val",
    rows=3_270,
    licence="CC BY-SA 3.0",
    files={"val": ("BoolQ/val.jsonl",)},
    **_SUPERGLUE,
)
AX_B = _declare(
    "ax-b",
    "AX-b",
    group="reasoning",
    split="test",
    rows=1_104,
    extra=("mcc",),
    licence="none is stated; for research",
    files={"test": ("AX-b/AX-b.jsonl",)},
    **_SUPERGLUE,
)
PIQA = _declare(
    "piqa",
    "PIQA",
    group="reasoning",
    language="en",
    split="valid",
    rows=1_838,
    options=2,
    licence="Academic Free License 3.0",
    source="github.com/ybisk/ybisk.github.io",
    hub="baber/piqa",
    form="labelled",
    files={"valid": ("valid.jsonl", "valid-labels.lst")},
)
CSL = _declare(
    "csl",
    "CSL",
    group="understanding",
    split="dev",
    options=2,
    **_CLUE,
)
EPRSTMT = _declare(
    "eprstmt",
    "EPRSTMT",
    group="understanding",
    split="dev",
    options=2,
    **_CLUE,
)
XSUM = _declare(
    "xsum",
    "XSum",
    group="understanding",
    language="en",
    split="dev",
    first=1000,
    metric="ROUGE-1 F",
    extra=("rouge_l",),
    scorings=("gen",),
    options=0,
    licence="none is stated; the articles are the BBC's",
    source="github.com/EdinburghNLP/XSum",
    hub="EdinburghNLP/xsum",
    files={"dev": ("dev.jsonl",)},
)
LCSTS = _declare(
    "lcsts",
    "LCSTS",
    group="understanding",
    split="test",
    metric="ROUGE-1 F over jieba words",
    extra=("rouge_2", "rouge_l"),
    scorings=("gen",),
    options=0,
    licence="on request from its authors; for research",
    source="icrc.hitsz.edu.cn/Article/show/139.html",
    hub="hugcyp/LCSTS",
    form="parallel",
    files={"test": ("test.src.txt", "test.tgt.txt")},
)
FINANCEIQ = _examine(
    "financeiq",
    "FinanceIQ",
    "{split}/{file}.csv",
    ("dev", "test"),
    group="finance",
    split="test",
    rows=7_123,
    licence="CC BY-NC-SA 4.0",
    source="github.com/Duxiaoman-DI/XuanYuan",
    hub="Duxiaoman-DI/FinanceIQ",
    hub_files=("data/dev/*.csv", "data/test/*.csv"),
)
FINEVAL = _examine(
    "fineval",
    "FinEval",
    "{split}/{file}_{split}.csv",
    _THREE,
    group="finance",
    split="val",
    rows=1_151,
    average="weighted",
    explained=True,
    licence="Apache-2.0 by the repository; treat it as non-commercial",
    source="github.com/SUFE-AIFLM-Lab/FinEval",
    hub="SUFE-AIFLM-Lab/FinEval",
    hub_files=("FinEval.zip",),
)
LAWBENCH = _declare(
    "lawbench",
    "LawBench",
    group="law",
    split="zero_shot",
    rows=10_000,
    metric="of each task: accuracy, F1, ROUGE-L, F0.5 or log distance",
    extra=("abstained",),
    average="lawbench",
    scorings=("gen",),
    options=0,
    licence="Apache-2.0; its texts follow the licence of each source",
    source="github.com/open-compass/LawBench",
    form="json",
    files={split: (f"{split}/{{file}}.json",) for split in ("zero_shot", "one_shot")},
)

# In the order of the source's tables.
BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        one.name: one
        for one in (
            *(CEVAL, CMMLU, MMLU, AGIEVAL, BOOLQ, AX_B, PIQA, CSL, EPRSTMT, XSUM, LCSTS),
            *(FINANCEIQ, FINEVAL, LAWBENCH),
        )
    }
)


def find_benchmark(name: str) -> Benchmark:
    """Find a benchmark by its name.

    Raises:
        UserError: there is none of that name.

    Example:
        >>> find_benchmark("ceval").title, len(find_benchmark("ceval").subjects)
        ('C-Eval', 52)
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    raise UserError(
        f"there is no benchmark {short_repr(name)}; {suggest(name, BENCHMARKS)}expected one of "
        f"{', '.join(BENCHMARKS)}"
    )
