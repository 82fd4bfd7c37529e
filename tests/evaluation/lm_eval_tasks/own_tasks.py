"""Tasks of the tests' own making, as files of lm-eval with their data beside them."""

import json
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab.evaluation.results.result import EvaluationResult
from tests.evaluation.candidate import candidate, tokenizer

HEAD = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}, train: {data}}}
test_split: test
fewshot_split: train
fewshot_config: {{sampler: first_n}}
metadata: {{version: 1}}
"""
CHOICE = """
output_type: multiple_choice
doc_to_text: "Which number comes after {{number}}? Answer:"
doc_to_choice: options
doc_to_target: right
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
WRITTEN = """
output_type: generate_until
doc_to_text: "Which number comes after {{number}}? Answer:"
doc_to_target: "{{options[right]}}"
generation_kwargs: {until: ["?"], do_sample: false, max_gen_toks: 6}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
filter_list:
  - name: strict
    filter: [{function: regex, regex_pattern: "^ ?(two)"}, {function: take_first}]
  - name: loose
    filter: [{function: regex, regex_pattern: "([a-z])"}, {function: take_first}]
"""
READ = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "Which number comes after {{number}}? Answer: {{options[0]}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
"""
LAST = """
output_type: loglikelihood
doc_to_text: "Which number comes after {{number}}? Answer:"
doc_to_target: " A"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
"""
KINDS = {"own_choice": CHOICE, "own_written": WRITTEN, "own_read": READ, "own_last": LAST}
GROUP = """
group: own_group
task: [own_choice, own_more]
aggregate_metric_list: [{metric: acc, weight_by_size: %s}]
"""
OPTIONS = (
    ["two", "the number that comes after one"],
    ["B", "C", "two three"],
    ["one number after three", "four"],
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "number": " one" * (1 + place % 6),
            "options": OPTIONS[place % 3],
            "right": place % len(OPTIONS[place % 3]),
        }
        for place in range(count)
    ]


def write(folder: Path, name: str, body: str, count: int = 12, more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(count)), encoding="utf-8")
    path = folder / f"{name}.yaml"
    path.write_text(HEAD.format(name=name, data=data) + body + more, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all kinds of tasks, with a cache of data sets of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    home = tmp_path / "tasks"
    for name, body in KINDS.items():
        write(home, name, body)
    write(home, "own_more", CHOICE, 5)
    (home / "own_group.yaml").write_text(GROUP % "true", encoding="utf-8")
    return home


def run(tasks: Any, **options: Any) -> EvaluationResult:
    model = options.pop("model", None) or candidate(512).model
    words = options.pop("words", None) or tokenizer()
    named = ",".join(map(str, tasks)) if isinstance(tasks, list) else str(tasks)
    return layerlab.evaluate(model, tasks=named, tokenizer=words, progress=False, **options)
