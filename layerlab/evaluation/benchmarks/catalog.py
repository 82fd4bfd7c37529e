"""The benchmarks of the sources, each declared once.

Eleven general ones, two of finance and one of law. A declaration says where a benchmark's files
lie, which of its splits is scored, how its official average is made and what its licence is; the
data themselves are never part of the package. `group` is the heading of the source's tables, so
that the group means can be taken.
"""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.spec import Benchmark, subjects
from layerlab.validation import short_repr

CEVAL = Benchmark(
    name="ceval",
    title="C-Eval",
    group="examination",
    language="zh",
    split="val",
    shots_split="dev",
    shots=5,
    most_shots=5,
    scorings=("choice_ll", "mean_nll", "gen"),
    explained=True,
    licence="CC BY-NC-SA 4.0",
    source="github.com/hkust-nlp/ceval",
    hub="ceval/ceval-exam",
    hub_files=("ceval-exam.zip",),
    folder="ceval",
    form="csv",
    files={split: (f"{split}/{{file}}_{split}.csv",) for split in ("dev", "val", "test")},
    subjects=subjects("ceval"),
)
CMMLU = Benchmark(
    name="cmmlu",
    title="CMMLU",
    group="examination",
    language="zh",
    split="test",
    shots_split="dev",
    shots=5,
    most_shots=5,
    scorings=("choice_ll", "mean_nll", "gen"),
    licence="CC BY-NC-SA 4.0",
    source="github.com/haonan-li/CMMLU",
    hub="haonan-li/cmmlu",
    hub_files=("cmmlu_v1_0_1.zip",),
    folder="cmmlu",
    form="csv",
    files={split: (f"{split}/{{file}}.csv",) for split in ("dev", "test")},
    subjects=subjects("cmmlu"),
)
MMLU = Benchmark(
    name="mmlu",
    title="MMLU",
    group="examination",
    language="en",
    split="test",
    shots_split="dev",
    shots=5,
    most_shots=5,
    scorings=("choice_ll", "mean_nll", "gen"),
    licence="MIT",
    source="github.com/hendrycks/test",
    hub="cais/mmlu",
    folder="mmlu",
    form="headless",
    files={split: (f"{split}/{{file}}_{split}.csv",) for split in ("dev", "val", "test")},
    subjects=subjects("mmlu"),
)
AGIEVAL = Benchmark(
    name="agieval",
    title="AGIEval",
    group="examination",
    language="zh",
    split="test",
    metric="accuracy; exact match where there are no options",
    options=0,
    licence="MIT; JEC-QA, LSAT and others keep their own terms",
    source="github.com/ruixiangcui/AGIEval",
    hub="hails/agieval-{subject}",
    folder="agieval",
    form="jsonl",
    files={"test": ("v1/{file}.jsonl",)},
    subjects=subjects("agieval"),
)
BOOLQ = Benchmark(
    name="boolq",
    title="BoolQ",
    group="knowledge",
    language="en",
    split="val",
    options=2,
    licence="CC BY-SA 3.0",
    source="super.gluebenchmark.com",
    hub="aps/super_glue",
    folder="superglue",
    form="jsonl",
    files={"val": ("BoolQ/val.jsonl",)},
    subjects=subjects("boolq"),
)
AX_B = Benchmark(
    name="ax-b",
    title="AX-b",
    group="reasoning",
    language="en",
    split="test",
    extra=("mcc",),
    options=2,
    licence="none is stated; for research",
    source="super.gluebenchmark.com",
    hub="aps/super_glue",
    folder="superglue",
    form="jsonl",
    files={"test": ("AX-b/AX-b.jsonl",)},
    subjects=subjects("ax-b"),
)
PIQA = Benchmark(
    name="piqa",
    title="PIQA",
    group="reasoning",
    language="en",
    split="valid",
    options=2,
    licence="Academic Free License 3.0",
    source="github.com/ybisk/ybisk.github.io",
    hub="baber/piqa",
    folder="piqa",
    form="labelled",
    files={"valid": ("valid.jsonl", "valid-labels.lst")},
    subjects=subjects("piqa"),
)
CSL = Benchmark(
    name="csl",
    title="CSL",
    group="understanding",
    language="zh",
    split="dev",
    options=2,
    licence="none is stated; for research",
    source="github.com/CLUEbenchmark/FewCLUE",
    folder="csl",
    form="jsonl",
    files={"dev": ("dev_few_all.json",), "test": ("test_public.json",)},
    subjects=subjects("csl"),
)
EPRSTMT = Benchmark(
    name="eprstmt",
    title="EPRSTMT",
    group="understanding",
    language="zh",
    split="dev",
    options=2,
    licence="none is stated; for research",
    source="github.com/CLUEbenchmark/FewCLUE",
    folder="eprstmt",
    form="jsonl",
    files={"dev": ("dev_few_all.json",), "test": ("test_public.json",)},
    subjects=subjects("eprstmt"),
)
XSUM = Benchmark(
    name="xsum",
    title="XSum",
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
    folder="xsum",
    form="jsonl",
    files={"dev": ("dev.jsonl",)},
    subjects=subjects("xsum"),
)
LCSTS = Benchmark(
    name="lcsts",
    title="LCSTS",
    group="understanding",
    language="zh",
    split="test",
    metric="ROUGE-1 F over jieba words",
    extra=("rouge_2", "rouge_l"),
    scorings=("gen",),
    options=0,
    licence="on request from its authors; for research",
    source="icrc.hitsz.edu.cn/Article/show/139.html",
    hub="hugcyp/LCSTS",
    folder="lcsts",
    form="parallel",
    files={"test": ("test.src.txt", "test.tgt.txt")},
    subjects=subjects("lcsts"),
)
FINANCEIQ = Benchmark(
    name="financeiq",
    title="FinanceIQ",
    group="finance",
    language="zh",
    split="test",
    shots_split="dev",
    shots=5,
    most_shots=5,
    scorings=("choice_ll", "mean_nll", "gen"),
    licence="CC BY-NC-SA 4.0",
    source="github.com/Duxiaoman-DI/XuanYuan",
    hub="Duxiaoman-DI/FinanceIQ",
    hub_files=("data/dev/*.csv", "data/test/*.csv"),
    folder="financeiq",
    form="csv",
    files={split: (f"{split}/{{file}}.csv",) for split in ("dev", "test")},
    subjects=subjects("financeiq"),
)
FINEVAL = Benchmark(
    name="fineval",
    title="FinEval",
    group="finance",
    language="zh",
    split="val",
    shots_split="dev",
    shots=5,
    most_shots=5,
    average="weighted",
    scorings=("choice_ll", "mean_nll", "gen"),
    explained=True,
    licence="Apache-2.0 by the repository; treat it as non-commercial",
    source="github.com/SUFE-AIFLM-Lab/FinEval",
    hub="SUFE-AIFLM-Lab/FinEval",
    hub_files=("FinEval.zip",),
    folder="fineval",
    form="csv",
    files={split: (f"{split}/{{file}}_{split}.csv",) for split in ("dev", "val", "test")},
    subjects=subjects("fineval"),
)
LAWBENCH = Benchmark(
    name="lawbench",
    title="LawBench",
    group="law",
    language="zh",
    split="zero_shot",
    metric="of each task: accuracy, F1, ROUGE-L, F0.5 or log distance",
    extra=("abstained",),
    average="lawbench",
    scorings=("gen",),
    options=0,
    licence="Apache-2.0; its texts follow the licence of each source",
    source="github.com/open-compass/LawBench",
    folder="lawbench",
    form="json",
    files={split: (f"{split}/{{file}}.json",) for split in ("zero_shot", "one_shot")},
    subjects=subjects("lawbench"),
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
    near = difflib.get_close_matches(name, BENCHMARKS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        f"there is no benchmark {short_repr(name)}; {hint}expected one of {', '.join(BENCHMARKS)}"
    )
