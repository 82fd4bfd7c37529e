"""How long 1,000 four-choice questions take a model of 1 M parameters; what the shared part saves.

    python bench/judging/evaluation.py [--questions 1000] [--context 2048] [--ways ours engine]

Questions, options and examples are made up, of the length of an examination's; five examples stand
before each. Ours is timed with its model loading left out and everything else in; the engine's own
model class, which runs every prompt whole, is timed on the same tasks, and must score the same.
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import layerlab
from layerlab.evaluation.harness.lm import HarnessModel
from layerlab.evaluation.harness.run_task import run_task
from layerlab.evaluation.lm_eval_tasks.engine import HFLM, evaluate
from layerlab.evaluation.lm_eval_tasks.load import load_tasks
from layerlab.loading.model import LoadedModel
from layerlab.system.logs import hush
from layerlab.system.torch_settings import threads
from layerlab.tokenization.train import train_bpe

WORDS = "capital interest deposit reserve account audit risk bond yield share tax fund".split()
EXAMPLES, OPTIONS = 5, "ABCD"
TARGET_SECONDS = 120
READER = """
import json
from pathlib import Path

def load(**_):
    from datasets import Dataset
    rows = json.loads((Path(__file__).parent / "rows.json").read_text("utf-8"))
    return {name: Dataset.from_list(found) for name, found in rows.items()}

def mark(doc, results):
    best = max(range(len(results)), key=lambda place: results[place][0])
    return {"score": float(best == doc["gold"])}
"""
TASK = """
task: layerlab_made_up
custom_dataset: !function reader.load
output_type: multiple_choice
test_split: test
fewshot_split: dev
fewshot_config: {sampler: first_n}
num_fewshot: 5
description: "The following are questions of an examination, each with one right answer.\\n\\n"
doc_to_text: prompt
doc_to_choice: choices
doc_to_target: gold
target_delimiter: ""
process_results: !function reader.mark
metric_list: [{metric: score, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""


def question(draw: random.Random) -> dict[str, Any]:
    """Draw a question of 20 to 70 words, with four options of 4 to 12."""

    def said(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    options = "\n".join(f"{letter}. {said(4, 12)}" for letter in OPTIONS)
    return {
        "prompt": f"{said(20, 70)}?\n{options}\nAnswer:",
        "choices": [f" {letter}" for letter in OPTIONS],
        "gold": draw.randrange(len(OPTIONS)),
    }


def prepared(folder: Path, questions: int, context: int) -> tuple[Any, LoadedModel]:
    """Write the task into a folder, and return it with a random model that reads it."""
    draw = random.Random(0)
    rows = {
        "dev": [question(draw) for _ in range(EXAMPLES)],
        "test": [question(draw) for _ in range(questions)],
    }
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "reader.py").write_text(READER, encoding="utf-8")
    (folder / "task.yaml").write_text(TASK, encoding="utf-8")
    words = train_bpe((row["prompt"] for row in rows["test"]), vocab=2048)
    words.model_max_length = context
    sizes = {"width": 128, "layers": 4, "heads": 4, "vocab": 2048, "context": context}
    model = layerlab.build("llama", **sizes).eval()
    (task,) = load_tasks([str(folder / "task.yaml")]).values()
    return task, LoadedModel(name="1m", source="memory", model=model, tokenizer=words)


def ours(task: Any, subject: LoadedModel, batch: int) -> dict[str, float]:
    engine = HarnessModel(subject, batch=batch, scoring="choice_ll")
    found = run_task(engine, task)
    return {
        "score": found.metrics["score"],
        "shots_mean": found.shots.mean,
        "share_of_tokens_run": engine.forward.passed / engine.forward.tokens,
    }


def engines(task: Any, subject: LoadedModel, batch: int) -> dict[str, float]:
    with hush():
        plain = HFLM(
            pretrained=subject.model,
            tokenizer=subject.tokenizer,
            batch_size=batch,
            max_length=subject.context,
        )
        task.set_fewshot_seed(0)
        tasks = {"tasks": {task.task_name: task}, "groups": {}}
        found = evaluate(plain, tasks, bootstrap_iters=0)
    return {"score": found["results"][task.task_name]["score,none"]}


WAYS = {"ours": ours, "engine": engines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["ours"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task, subject = prepared(Path(folder), given.questions, given.context)
        parameters = subject.model.num_parameters()
        load = psutil.getloadavg()[0]
        print(f"{parameters:,} parameters, {given.questions} questions, load {load:.1f}")
        for way in given.ways:
            start, spent = time.monotonic(), time.process_time()
            with threads(subject):  # as many as `layerlab evaluate` takes for such a model
                found = WAYS[way](task, subject, given.batch)
            seconds, spent = time.monotonic() - start, time.process_time() - spent
            told = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            verdict = "" if way != "ours" else f" (target {TARGET_SECONDS})"
            print(f"{way}: {seconds:.1f} s{verdict}, {spent:.1f} s of processor, {told}")


if __name__ == "__main__":
    main()
