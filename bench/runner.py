"""Two pinned single-thread runs on two cores against one alone, and what a run takes to start.

What counts are the tokens per second of the clock, summed over the runs, while all of them train:
before the last has begun and after the first has ended, a run has the machine to itself. On a
machine that does anything else, too, the ratio says little. A run starts in a process that has
carried out others, against one in a process of its own.

    python bench/runner.py [UPDATES]
    python bench/runner.py --wall RECIPE [OPTIONS of layerlab compare]

The second times a whole comparison, from the command to the page, over the updates of its runs.
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from layerlab.console.progress import NullProgress
from layerlab.corpus.corpus import extent, prepare
from layerlab.experiments.executors.local import RunOutcome, run_all
from layerlab.experiments.executors.process import WORKER
from layerlab.experiments.executors.slots import slots
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import load_recipe, make_recipe
from layerlab.recipes.training_sections import RunSection
from layerlab.records.events import read as read_events
from layerlab.training.run_spec import RunSpec

AT_LEAST = 1.8
# Times that a start in a process of its own takes as long.
SAVED = 5.0
UPDATES = 60
RECIPE: dict[str, Any] = {
    "name": "runner",
    "model": {"variant": "llama", "width": 128, "layers": 4, "heads": 4, "context": 128},
    "data": {"vocab_size": 1024},
    "train": {"batch_size": 8},
    "evaluate": {"max_eval_blocks": 4, "eval_steps": 1_000_000},
    "run": {"save_model": False, "save_steps": 1_000_000},
}

Line = Callable[..., None]
Course = Sequence[tuple[float, float]]


class Clock(NullProgress):
    """Writes down when each run had taken how many tokens."""

    def __init__(self) -> None:
        self.courses: dict[str, list[tuple[float, float]]] = {}

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Note the time of an update of a run, as soon as it is in its journal."""
        self.courses.setdefault(name, []).append((time.perf_counter(), event["tokens"]))


def together(courses: Sequence[Course]) -> list[float]:
    """Return each run's tokens per second in the time in which all of them train.

    Args:
        courses: of each run its moments, and how many tokens it had taken by then.
    """
    begin = max(course[0][0] for course in courses)
    end = min(course[-1][0] for course in courses)
    within = [[one for one in course if begin <= one[0] <= end] for course in courses]
    if min(map(len, within)) < 2:
        raise SystemExit("the runs were not at work at the same time; type more UPDATES")
    return [(last[1] - first[1]) / (last[0] - first[0]) for first, *_, last in within]


def speeds(count: int, updates: int) -> list[float]:
    """Return the tokens per second of runs side by side, as many as asked for."""
    recipe = make_recipe({**RECIPE, "train": {**RECIPE["train"], "max_steps": updates}})
    corpus = prepare(recipe.data)
    runs = [_seeded(recipe, seed, extent(corpus, 128)) for seed in range(count)]
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        outcomes = run_all(runs, Path(out), RunSection(max_parallel=count, threads=1), clock)
    failed = [one for one in outcomes if one.result is None]
    if failed:
        raise SystemExit(failed[0].text)
    return together(list(clock.courses.values()))


def _seeded(recipe: Any, seed: int, known: Any) -> RunSpec:
    (found,) = plan(recipe.change({"train.seed": seed}), known)
    return found


def ratio(updates: int = UPDATES) -> tuple[float, list[float], list[float]]:
    """Return the speed of two runs over that of one alone, measured before and after them."""
    before = speeds(1, updates)
    both = speeds(2, updates)
    alone = [*before, *speeds(1, updates)]
    return sum(both) / (sum(alone) / len(alone)), alone, both


def runner(line: Line, updates: int = UPDATES) -> None:
    found, alone, both = ratio(updates)
    line("two runs on two cores over one run", found, AT_LEAST)
    print(f"  alone {_told(alone)}, together {_told(both)} tokens per second each")


def starting(line: Line, runs: int = 5) -> None:
    """Measure what each run after the first takes beside its updates and evaluations."""
    recipe = make_recipe({**RECIPE, "train": {**RECIPE["train"], "max_steps": 10}})
    corpus = prepare(recipe.data)
    plans = [_seeded(recipe, seed, extent(corpus, 128)) for seed in range(runs)]
    found = {}
    for name, command in (("one process for all", None), ("a process each", WORKER)):
        with tempfile.TemporaryDirectory() as out:
            first, *others = run_all(
                plans, Path(out), RunSection(max_parallel=1, threads=1), None, command
            )
            ends = [_end(one) for one in (first, *others)]
            found[name] = (ends[-1] - ends[0]) / len(others) - sum(map(_work, others)) / len(others)
        print(f"  {name}: {found[name]:.2f} s a run beside training and evaluation")
    shared, own = found.values()
    line("a process each over one process for all, start of a run", own / shared, SAVED)


def _end(outcome: RunOutcome) -> float:
    return (outcome.folder / "result.json").stat().st_mtime


def _work(outcome: RunOutcome) -> float:
    """Return the seconds of a run's updates and evaluations."""
    events = list(read_events(outcome.folder))
    evaluations = sum(one["runtime"] for one in events if one["kind"] == "evaluation")
    return float(events[-1]["seconds"] + evaluations)


def wall(recipe: str, *options: str) -> None:
    """Print the time of a comparison over that of its updates, by the runs that go at once."""
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "layerlab", "compare", recipe, *options]
        command += ["--out", out, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - begun
        results = [json.loads(file.read_text()) for file in Path(out).glob("*/runs/*/result.json")]
    at_once = len(slots(load_recipe(recipe).run, len(results)))
    updates = sum(one["seconds"] for one in results) / at_once
    print(
        f"{recipe}: {len(results)} runs, {at_once} at once, {taken:.1f} s over {updates:.1f} s of"
    )
    print(f"updates: {taken / updates:.3f} (1.15 is asked of eight-residuals-long on two cores)")


def _told(speeds: list[float]) -> str:
    return " and ".join(f"{one:,.0f}" for one in speeds)


def main() -> None:
    if sys.argv[1:2] == ["--wall"]:
        wall(*sys.argv[2:])
        return
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else UPDATES

    def line(name: str, found: float, least: float) -> None:
        print(f"{name}: {found:.2f} (at least {least}: {'yes' if found >= least else 'NO'})")

    runner(line, updates)
    starting(line)


if __name__ == "__main__":
    main()
