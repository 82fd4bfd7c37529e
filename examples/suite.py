"""Two arms judged, beside their loss, by questions about a text: a suite of one's own.

    python examples/suite.py

It takes seconds. Its text is the built-in one, of which the questions are the part held out.
"""

import json
from pathlib import Path

import layerlab
from layerlab.builtin import SAMPLE

ASKED, ANSWERED = 24, 8  # characters of a question, and of each of its two answers
TASK = """
task: forwards
dataset_path: json
dataset_kwargs:
  data_files: {test: questions.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: text
doc_to_choice: answers
doc_to_target: right
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1}
"""
RECIPE = {
    "name": "example-suite",
    "model": {"width": 48, "layers": 2, "heads": 2, "context": 64},
    "data": {"sources": [{"text": "text.txt"}], "vocab_size": 260},
    "train": {"max_steps": 120, "batch_size": 8, "learning_rate": 5e-3},
    "evaluate": {"eval_steps": 40, "max_eval_blocks": 16},
    "compare": {
        # One is trained twelve times as long as the other.
        "arms": ["llama", {"name": "briefly", "set": {"train.max_steps": 10}}],
        "allowed_differences": ["train.max_steps"],
        "seeds": [1, 2, 3],
        "measures": ["suite:forwards.yaml"],
        "lockstep": True,
    },
}


def write_questions(text: str) -> None:
    """Write a task of lm-eval: does a piece of the text go on forwards, or backwards?"""
    rows = []
    for place in range(0, len(text) - ASKED - ANSWERED, ANSWERED):
        end = place + ASKED
        right, answer = len(rows) % 2, text[end : end + ANSWERED]
        answers = [answer[::-1], answer] if right else [answer, answer[::-1]]
        rows.append({"text": text[place:end], "answers": answers, "right": right})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    Path("questions.jsonl").write_text(lines, encoding="utf-8")
    Path("forwards.yaml").write_text(TASK, encoding="utf-8")


if __name__ == "__main__":
    sample = SAMPLE.read_text("utf-8")
    cut = len(sample) * 3 // 4
    Path("text.txt").write_text(sample[:cut], encoding="utf-8")
    write_questions(sample[cut:])
    comparison = layerlab.compare(RECIPE, progress=False)
    for row in comparison.rows + comparison.content["measures"]:
        print("-", row["said"])
