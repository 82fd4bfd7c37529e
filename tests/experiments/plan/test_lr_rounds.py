"""A search goes round by round through real folders, and finds what was planted there."""

import math
from pathlib import Path

from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.lr_rounds import search_rates
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.result import read_result
from layerlab.training.run_spec import RunSpec
from tests.training.drawn import record, write

EXTENT = CorpusSize(vocab=300, tokens=10_000, digest="a")
BEST = {"llama": 3e-3, "history-3": 1e-2}


def recipe(search: str) -> TrainingRecipe:
    return make_recipe(
        {
            "model": {"width": 32, "layers": 2, "heads": 2, "context": 16},
            "train": {"max_steps": 4, "batch_size": 2},
            "compare": {
                "arms": list(BEST),
                "seeds": [1, 2],
                "learning_rates": [1e-4, 1e-1],
                "search": search,
                "trials": 8,
            },
        }
    )


def planted(out: Path, run: RunSpec) -> None:
    """The result of a run whose loss is a parabola in the logarithm of its rate."""
    loss = 3 + math.log(run.rate / BEST[run.arm]) ** 2 + 0.01 * run.seed
    # The rate at the top diverges for the one arm.
    lost = "at once" if run.arm == "llama" and run.rate == 0.1 else None
    write(out, record(run, loss, diverged=lost))


def test_every_arm_finds_its_own_rate(tmp_path: Path) -> None:
    found = recipe("optuna")
    assert found.compare is not None
    rounds: list[int] = []

    def carry(runs: list[RunSpec]) -> None:
        rounds.append(len(runs))
        for run in runs:
            if read_result(tmp_path / run.name) is None:
                planted(tmp_path, run)

    runs = plan(found, EXTENT)
    made = search_rates(found.compare, runs, tmp_path, carry)
    assert len(rounds) <= 8 and len(made) == sum(rounds)
    for arm, wanted in BEST.items():
        results = {
            run.rate: (read_result(tmp_path / run.name) or {})["nats"]
            for run in made
            if run.arm == arm and run.seed == 1
        }
        best = min((nats, rate) for rate, nats in results.items() if nats is not None)[1]
        assert abs(math.log(best / wanted)) < 0.3
    # What was found once is found again, and nothing new is run.
    assert [run.name for run in search_rates(found.compare, runs, tmp_path, carry)] == [
        run.name for run in made
    ]
