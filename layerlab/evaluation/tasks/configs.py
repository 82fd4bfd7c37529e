"""The task files of lm-eval, written from the declarations.

lm-eval names a task by a file of its own, so there is one for every subject; each is a few lines
over a template. Type `python -m layerlab.evaluation.tasks.configs` to write them anew.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.spec import Benchmark, Subtask
from layerlab.system.files import write_file

FOLDER = Path(__file__).parent
# A change of what a task asks or how it is marked: results of another version do not compare.
VERSION = 1.0
# LawBench's tasks are marked each in its own way and written by hand.
BY_HAND = ("lawbench",)
TEMPLATES: Mapping[str, str] = {"ax-b": "matthews", "xsum": "xsum", "lcsts": "lcsts"}
CLOZE = ("gaokao_mathcloze", "math")
# Stands in the place of what a task is overridden with where it writes its answer.
_WRITTEN = """\
    output_type: generate_until
    doc_to_choice: null
    generation_kwargs: {{until: ["\\n\\n"], do_sample: false, max_gen_toks: {length}}}
    process_results: !function layerlab.evaluation.tasks.process_results.{mark}
    metric_list:
      - {{metric: score, aggregation: mean, higher_is_better: true}}
      - {{metric: abstained, aggregation: mean, higher_is_better: false}}
"""
_REASONED = "    dataset_kwargs: {cot: true}\n"


def files() -> dict[Path, str]:
    """Return every task file that is written from the declarations, by its path."""
    found: dict[Path, str] = {}
    for benchmark in BENCHMARKS.values():
        if benchmark.name not in BY_HAND:
            folder = Path(benchmark.name)
            for name, text in _of_benchmark(benchmark):
                found[folder / f"{name}.yaml"] = text
    return found


def _of_benchmark(benchmark: Benchmark) -> Iterator[tuple[str, str]]:
    for subject in benchmark.subjects:
        yield subject.name, _leaf(benchmark, subject)
    yield "_group", _group(benchmark)
    if "gen" in benchmark.scorings and "choice_ll" in benchmark.scorings:
        yield "_gen", _variant(benchmark, "gen", _WRITTEN.format(length=32, mark="letter"))
    if benchmark.explained:
        reasoned = _WRITTEN.format(length=512, mark="reasoned_letter") + _REASONED
        yield "_cot", _variant(benchmark, "cot", reasoned)


def _leaf(benchmark: Benchmark, subject: Subtask) -> str:
    template = TEMPLATES.get(benchmark.name, "choice")
    if benchmark.name == "agieval" and subject.name in CLOZE:
        template = "cloze"
    return (
        f"include: ../_{template}.yaml\n"
        f"task: {benchmark.leaf(subject)}\n"
        f"task_alias: {subject.name}\n"
        f"num_fewshot: {benchmark.shots}\n"
        f"metadata: {{version: {VERSION}, benchmark: {benchmark.name}, subject: {subject.name}}}\n"
    )


def _group(benchmark: Benchmark) -> str:
    leaves = "".join(f"  - {benchmark.leaf(subject)}\n" for subject in benchmark.subjects)
    return (
        f"group: {benchmark.task}\n"
        f"group_alias: {benchmark.title}\n"
        f"task:\n{leaves}{_mean(benchmark, 'score')}"
        f"metadata: {{version: {VERSION}}}\n"
    )


def _variant(benchmark: Benchmark, name: str, changed: str) -> str:
    """Return a group of the same tasks, asked or marked in another way."""
    return (
        f"group: {benchmark.task}_{name}\n"
        f'group_alias: "{benchmark.title}, {name}"\n'
        f"task:\n  - group: {benchmark.task}\n{changed}"
        f"{_mean(benchmark, 'score', 'abstained')}"
        f"metadata: {{version: {VERSION}}}\n"
    )


def _mean(benchmark: Benchmark, *metrics: str) -> str:
    weighted = str(benchmark.average == "weighted").lower()
    return "aggregate_metric_list:\n" + "".join(
        f"  - {{metric: {metric}, aggregation: mean, weight_by_size: {weighted}}}\n"
        for metric in metrics
    )


if __name__ == "__main__":
    for path, text in files().items():
        write_file(FOLDER / path, text)
