"""The tasks of lm-eval, made from the declarations: as dicts, and as files for `lm-eval run`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.spec import Benchmark, Subtask
from layerlab.evaluation.lawbench import docs as lawbench
from layerlab.evaluation.lawbench.aggregate import corpus_f
from layerlab.evaluation.lawbench.tasks import TASKS
from layerlab.evaluation.tasks import process_results as results
from layerlab.system.files import File, OnlyOwn, write_folder

Config = dict[str, Any]

# A change of what a task asks or how it is marked: results of another version do not compare.
VERSION = 1.0
# LawBench's texts are marked otherwise since then: corrections together, an empty one with 0. So
# its average is another one, twice.
CORRECTIONS, TEXTS, LAW = "2-1", 1.1, 1.2
# Equations, several values and words are values too since then.
VALUES = 1.1
CLOZE = ("gaokao_mathcloze", "math")


def _metrics(*names: str, **others: Callable[..., Any]) -> list[Config]:
    """Return metrics as lm-eval lists them, by name; more abstentions are worse."""
    return [
        {
            "metric": name,
            "aggregation": others.get(name, "mean"),
            "higher_is_better": name != "abstained",
        }
        for name in names
    ]


def _write(length: int, *until: str) -> Config:
    """Return what a task says that lets the model write its answer."""
    kwargs = {"until": list(until), "do_sample": False, "max_gen_toks": length}
    return {"output_type": "generate_until", "generation_kwargs": kwargs}


SHARED: Mapping[str, Any] = {
    "custom_dataset": results.load,
    "test_split": "test",
    "fewshot_split": "dev",
    "fewshot_config": {"sampler": "first_n"},
    "description": "header",
    "doc_to_text": "prompt",
    "doc_to_target": "target",
    # The blank before an English choice is part of the choice; a Chinese one has none, nor has one
    # that begins a turn of a conversation, for which lm-eval leaves its own delimiter out.
    "target_delimiter": "",
    "fewshot_delimiter": "\n\n",
}
CHOICE: Mapping[str, Any] = {
    **SHARED,
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "process_results": results.choice,
    "metric_list": _metrics("score"),
}
TEMPLATES: Mapping[str, Mapping[str, Any]] = {
    "ax-b": {
        **CHOICE,
        "process_results": results.choice_and_matthews,
        "metric_list": _metrics("score", "mcc", mcc=results.correlation),
    },
    "xsum": {
        **SHARED,
        **_write(128, "\n\n", "Document："),
        "process_results": results.english_summary,
        "metric_list": _metrics("score", "rouge_l", "abstained"),
    },
    "lcsts": {
        **SHARED,
        **_write(128, "\n\n", "阅读以下文章"),
        "process_results": results.chinese_summary,
        "metric_list": _metrics("score", "rouge_2", "rouge_l", "abstained"),
    },
    "cloze": {
        **SHARED,
        **_write(64, "\n\n", "Q:", "问题："),
        "process_results": results.value,
        "metric_list": _metrics("score", "abstained"),
    },
    "lawbench": {
        "custom_dataset": lawbench.documents,
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "target_delimiter": "",
        **_write(1024),
        "process_results": lawbench.marks,
        "metric_list": _metrics("score", "abstained"),
    },
}
# How else a benchmark of choices is asked: what changes in each of its tasks.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "gen": {**_write(32, "\n\n"), "process_results": results.letter},
    "cot": {
        **_write(512, "\n\n"),
        "process_results": results.reasoned_letter,
        "dataset_kwargs": {"cot": True},
    },
}


def task_configs(benchmark: Benchmark, way: str = "") -> list[Config]:
    """Return the tasks of a benchmark as `TaskManager.load` takes them, in its order.

    Args:
        way: "gen" and "cot" let the model write its answer, "cot" after reasoning; "" is the
            benchmark's own way.

    Example:
        >>> from layerlab.evaluation.benchmarks.catalog import find_benchmark
        >>> [one["task"] for one in task_configs(find_benchmark("piqa"))]
        ['layerlab_piqa_all']
    """
    changes: Config = {}
    if way:
        metrics = _metrics("score", "abstained")
        changes = {**WAYS[way], "doc_to_choice": None, "metric_list": metrics}
    return [{**_leaf(benchmark, one), **changes} for one in benchmark.subjects]


def _leaf(benchmark: Benchmark, subtask: Subtask) -> Config:
    template, version = benchmark.name, VERSION
    if benchmark.name == "agieval" and subtask.name in CLOZE:
        template, version = "cloze", VALUES
    config = {
        **TEMPLATES.get(template, CHOICE),
        "task": benchmark.leaf(subtask),
        "task_alias": subtask.name,
        "num_fewshot": benchmark.shots,
        "metadata": {"version": version, "benchmark": benchmark.name, "subject": subtask.name},
    }
    return {**config, **_of_law(subtask, config)} if template == "lawbench" else config


def _of_law(subtask: Subtask, config: Config) -> Config:
    """Return what a task of LawBench says besides."""
    kind = TASKS[subtask.name].kind
    metadata = {**config["metadata"], "level": subtask.category, "kind": kind}
    if kind == "generation":
        metadata["version"] = TEXTS
    alias = f"{subtask.name} {subtask.english}"
    if subtask.name != CORRECTIONS:
        return {"task_alias": alias, "metadata": metadata}
    return {
        "task_alias": alias,
        "process_results": lawbench.correction_marks,
        "metric_list": _metrics("score", "alone", "abstained", score=corpus_f),
        "metadata": metadata,
    }


def group_config(benchmark: Benchmark, way: str = "") -> Config:
    """Return the group of a benchmark's tasks, with the mean that its source reports."""
    law = benchmark.name == "lawbench"
    metrics = ("score", "abstained") if way or law else ("score",)
    weighted = benchmark.average == "weighted"
    config: Config = {
        "group": benchmark.task + (f"_{way}" if way else ""),
        "group_alias": benchmark.title + (f", {way}" if way else ""),
        "task": [benchmark.leaf(subtask) for subtask in benchmark.subjects],
        "aggregate_metric_list": [
            {"metric": name, "aggregation": "mean", "weight_by_size": weighted} for name in metrics
        ],
        "metadata": {"version": LAW, "benchmark": benchmark.name}
        if law
        else {"version": VALUES if benchmark.name == "agieval" else VERSION},
    }
    if way:
        changed = task_configs(benchmark, way)[0]
        names = ("doc_to_choice", "metric_list", *WAYS[way])
        config["task"] = [{"group": benchmark.task, **{name: changed[name] for name in names}}]
    return config


def ways(benchmark: Benchmark) -> list[str]:
    """Return the other ways in which the questions of a benchmark can be asked."""
    written = "gen" in benchmark.scorings and "choice_ll" in benchmark.scorings
    return ["gen"] * written + ["cot"] * benchmark.explained


def export_tasks(folder: File) -> Path:
    """Write all tasks as YAML files, for `lm-eval run --include_path`.

    Args:
        folder: new, or written by an earlier call.

    Raises:
        UserError: the folder cannot be written, or holds something else.
    """

    def fill(empty: Path) -> None:
        for benchmark in BENCHMARKS.values():
            own = empty / benchmark.name
            own.mkdir()
            for subject, config in zip(benchmark.subjects, task_configs(benchmark), strict=True):
                (own / f"{subject.name}.yaml").write_bytes(_yaml(config))
            for way in ("", *ways(benchmark)):
                (own / f"_{way or 'group'}.yaml").write_bytes(_yaml(group_config(benchmark, way)))

    return write_folder(Path(folder), fill, "folder of tasks", OnlyOwn())


def _yaml(config: Config) -> bytes:
    """Return a task as YAML, in which lm-eval's tag `!function` stands for a function."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Repeats what stands twice, where YAML would point to its first place."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        type(_yaml),
        lambda dumper, one: dumper.represent_scalar(
            "!function", f"{one.__module__}.{one.__qualname__}"
        ),
    )
    text: str = yaml.dump(config, Dumper=Dumper, allow_unicode=True, sort_keys=False)
    return text.encode()
