"""How long it takes to judge logs and evaluations.

Type python bench/judging/judge.py [evaluations]. Prints seconds and the most memory for two folders
of lm-eval's samples as large as MMLU's with five examples (57 tasks, 14,042 questions), of which at
most 10 s is asked for, and for 1,000 logs of 10,000 readings each, as CSV and as JSONL, of which it
is 60 s on two cores.
"""

import json
import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# Beside this file lies an inspect.py, which the standard library would find.
del sys.path[0]
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

import layerlab  # noqa: E402

RUNS, READINGS, ARMS, MOST = 1000, 10_000, 20, 60.0
TASKS, QUESTIONS, SOON = 57, 14_042, 10.0
# As long as five examples and a question of MMLU are, in the middle.
EXAMPLES = "Which of these is what is asked for here?\nA. one\nB. two\nC. three\nD. four\n" * 35


def write(folder: Path, kind: str) -> None:
    """Write logs of twenty arms with fifty seeds each."""
    steps = np.arange(10, 10 * READINGS + 1, 10)
    for number in range(RUNS):
        arm, seed = f"arm-{number % ARMS}", number // ARMS
        draw = np.random.default_rng(seed)
        losses = 3 + 4 * np.exp(-steps / 2e4) + draw.normal(0, 0.02, READINGS) + 0.01 * seed
        rows = zip(steps.tolist(), losses.tolist(), strict=True)
        if kind == "csv":
            text = "step,loss\n" + "".join(f"{step},{loss:.6f}\n" for step, loss in rows)
        else:
            text = "".join(f'{{"step": {step}, "loss": {loss:.6f}}}\n' for step, loss in rows)
        (folder / f"{arm}-s{seed}.{kind}").write_text(text)


def write_samples(folder: Path, seed: int) -> int:
    """Write what lm-eval writes of one model; return the bytes."""
    folder.mkdir()
    skill, easy = np.random.default_rng(seed), np.random.default_rng(0).random(QUESTIONS)
    right = skill.random(QUESTIONS) < easy + 0.02 * seed
    written = 0
    for task in range(TASKS):
        path = folder / f"samples_mmlu_{task}_2026-01-02T03-04-05.678901.jsonl"
        rows = (
            json.dumps(_sample(at // TASKS, bool(right[at]))) + "\n"
            for at in range(task, QUESTIONS, TASKS)
        )
        written += path.write_text("".join(rows))
    return written


def _sample(number: int, right: bool) -> dict[str, object]:
    prompt = f"{EXAMPLES}Question {number}: what comes next?\nAnswer:"
    likely = [["-0.5", "True"] if (at == 0) == right else ["-2.5", "False"] for at in range(4)]
    return {
        "doc_id": number,
        "doc": {"question": f"Question {number}", "choices": list("ABCD"), "answer": 0},
        "target": "0",
        "arguments": {
            f"gen_args_{at}": {"arg_0": prompt, "arg_1": f" {letter}"}
            for at, letter in enumerate("ABCD")
        },
        "resps": [[one] for one in likely],
        "filtered_resps": likely,
        "filter": "none",
        "metrics": ["acc"],
        "doc_hash": "0" * 64,
        "prompt_hash": "0" * 64,
        "target_hash": "0" * 64,
        "acc": float(right),
    }


def judge_evaluations() -> None:
    """Judge two folders as large as MMLU's and print what it took."""
    with TemporaryDirectory() as name:
        places = [Path(name, model) for model in ("base", "tuned")]
        size = sum(write_samples(place, seed) for seed, place in enumerate(places))
        start, began = time.perf_counter(), time.process_time()
        found = layerlab.judge(places, out=Path(name, "out"))
        seconds, own = time.perf_counter() - start, time.process_time() - began
        page = Path(name, "out", "report.html").stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"evaluations: {found.content['rows'][0]['n']:,} questions of {len(found.rows) - 2} tasks, "
        f"{size / 2**20:,.0f} MiB, in {seconds:.1f} s ({seconds / SOON:.2f} of what is asked for; "
        f"{own:.1f} s of the processor), "
        f"{peak:,.0f} MiB at most; {len(found.content['flipped']):,} flips on a page of "
        f"{page / 2**20:.1f} MiB"
    )


def judge_logs() -> None:
    """Judge logs of both kinds and print what it took."""
    for kind in ("csv", "jsonl"):
        with TemporaryDirectory() as name:
            write(Path(name), kind)
            start, began = time.perf_counter(), time.process_time()
            found = layerlab.judge(name, baseline="arm-0")
            seconds, own = time.perf_counter() - start, time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{kind}: {len(found.content['runs'])} logs of {READINGS:,} readings in {seconds:.1f} s"
            f" ({seconds / MOST:.2f} of what is asked for; {own:.1f} s of the processor), "
            f"{peak:,.0f} MiB at most"
        )


if __name__ == "__main__":
    judge_evaluations()
    if "evaluations" not in sys.argv[1:]:
        judge_logs()
