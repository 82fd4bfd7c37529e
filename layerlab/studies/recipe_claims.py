"""Claims about training: a comparison of the package is carried out, and each claim is judged.

One study for each recipe that says what its source claims and needs no GPU; where it needs one, its
twin for two cores is the study.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layerlab.recipes.training import TrainingRecipe, list_packaged, load_recipe
from layerlab.records.json_values import Json
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.result import FILE, MANIFEST
from layerlab.records.run_files import COMPARISON, RUNS
from layerlab.records.scores import SCORES
from layerlab.studies.engine.pictures import Curve, Gap, curves, gaps, style
from layerlab.studies.engine.sampling import StudyContext, digest
from layerlab.studies.engine.scale import comparison_scale
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.support import gradient_profile
from layerlab.studies.support.false_discovery import find_p_value
from layerlab.studies.support.training_facts import runs_in, settings_of
from layerlab.system.files import read_whole

# Of rows: what is no plain value, and what is a range.
NESTED = {"rates", "diverged", "missing", "differs"}
RANGES = ("detectable", "seeds_needed")
UNITS = {"nats": "nats per token", "bits_per_byte": "bits per byte"}
# The verdict at the head of a sentence stands beside it here.
WORD = re.compile(r"^(holds|fails|not decided( at this budget)?)[:,] ")


def make_run(name: str) -> Callable[[StudyContext], Outcome]:
    """Return a function that carries out a recipe."""

    def run(context: StudyContext) -> Outcome:
        return run_claims(name, context)

    return run


def run_claims(name: str, context: StudyContext) -> Outcome:
    """Train what is missing (nothing in the fast mode), and judge what is there."""
    # Late: a list of studies needs nothing that trains.
    from layerlab.experiments import session
    from layerlab.experiments.judging import find_stored, judge
    from layerlab.report.pages.comparison import save_comparison

    recipe = load_recipe(name)
    if not context.fast:
        progress = context.watcher is not None
        task = session.prepare(recipe, context.runs, progress=progress)
        failed = [one for one in session.run(task, progress=progress) if one.result is None]
        found = judge(task, failed).content
        save_comparison(found, task.out)
    elif finished_runs(context.runs / name):
        found = judge(find_stored(recipe, context.runs)).content
    else:
        return undone(recipe, context.runs)
    folders = [context.runs / name / RUNS / one["run"] for one in found["runs"] if one["finished"]]
    context.judged = {"trainings": runs_in(folders), "recipe": settings_of(folders)}
    return Outcome(
        verdicts=tuple(judge_claim(one, found) for one in found["claims"]),
        frames={
            "arms": pd.DataFrame(map(_flat, found["rows"])),
            "claims": pd.DataFrame(found["claims"]).drop(columns=["pairs", "arms"]),
            **gradient_profile.frames(found["gradients"]),
        },
        pictures=(*plot(found), *gradient_profile.pictures(found["gradients"])),
        remarks=(*filter(None, (recipe.about, recipe.inferred)), *found["remarks"]),
    )


def finished_runs(folder: Path) -> list[Path]:
    """Return the folders of the finished runs of a recipe, unfolded where they were folded."""
    unfold_runs(folder)
    return sorted(file.parent for file in (folder / RUNS).glob(f"*/{FILE}"))


def undone(recipe: TrainingRecipe, runs: Path) -> Outcome:
    """Return the outcome before anything has run: no claim is decided."""
    sentence = (
        f"0 runs lie in {runs / recipe.name}: type layerlab compare {recipe.name} --out {runs}, or "
        f"name the folder that holds them: --runs DIR"
    )
    return Outcome(
        verdicts=tuple(
            StudyVerdict(
                claim=one.statement,
                word="not decided",
                number=0.0,
                # What to type is said once.
                said="Nor is there a run for this claim." if number else sentence,
                unit=describe_seeds([0]),
            )
            for number, one in enumerate(_section(recipe).claims)
        ),
        frames={},
        pictures=(),
    )


def judge_claim(claim: Json, found: Mapping[str, Any]) -> StudyVerdict:
    """Judge a claim of a comparison as a verdict; its number is the difference that decides it."""
    return StudyVerdict(
        scale=comparison_scale(found, claim["arms"]),
        p=find_p_value(claim),
        claim=claim["says"],
        word=claim["verdict"],
        number=claim["number"] or 0.0,
        said=WORD.sub("", claim["said"]),
        source=claim["source"],
        unit=describe_seeds([pair["n"] for pair in claim["pairs"]]),
    )


def describe_seeds(counts: Sequence[int]) -> str:
    """Describe the unit of a claim: seeds that its pairs share, which not all may have finished.

    Example:
        >>> describe_seeds([3, 3]), describe_seeds([1]), describe_seeds([2, 5])
        ('3 seeds', '1 seed', '2 to 5 seeds')
    """
    low, high = min(counts), max(counts)
    if high == 1 == low:
        return "1 seed"
    return f"{low} seeds" if low == high else f"{low} to {high} seeds"


def plot(found: Mapping[str, Any]) -> tuple[Picture, ...]:
    """Plot the differences to the baseline, and the curves of held-out loss."""
    unit = UNITS[found["metric"]]
    contests = [
        Gap(name=row["arm"], middle=row["difference"], low=row["low"], high=row["high"])
        for row in sorted(found["rows"], key=lambda row: row["difference"] or 0.0)
        if row["difference"] is not None
    ]
    percent = f"{100 * found['confidence']:g} %"
    lines = [
        Curve(name=arm, kind=number, style=style(number), **mean)
        for number, arm in enumerate(found["arms"])
        if (mean := mean_and_range([one for one in found["curves"] if one["arm"] == arm], found))
    ]
    base = found["baseline"]
    title = f"Difference in {unit} (mean of seeds, {percent} interval); left is better"
    return (
        gaps("difference", title, contests, x=f"{unit}, against {base} or what an arm names"),
        curves(
            "curve",
            "Loss on held-out text along the run (mean of seeds, and their range)",
            lines,
            x="tokens of training",
            y=unit,
            log="",
        ),
    )


def mean_and_range(runs: Sequence[Json], found: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """Return the mean and range over an arm's chosen runs, where all were evaluated."""
    metric = found["metric"]
    tables = [
        pd.DataFrame(one["evaluation"]).set_index("tokens")[metric]
        for one in runs
        if one["chosen"] and one["evaluation"].get("tokens")
    ]
    if not tables:
        return None
    # The start says nothing of a variant, and would flatten all that follows.
    table = pd.concat(tables, axis=1).dropna()
    table = table[table.index > 0]
    return {
        "x": [int(tokens) for tokens in table.index],
        "y": table.mean(axis=1).tolist(),
        "low": table.min(axis=1).tolist(),
        "high": table.max(axis=1).tolist(),
    }


def texts(recipe: TrainingRecipe) -> list[str]:
    """Return the identities of a recipe's texts, of which the data folder may lack some."""
    # Late: a list of studies needs nothing that reads.
    from layerlab.data.sources import open_source

    return [open_source(one).identity for one in recipe.data.sources]


def results(name: str) -> Callable[[Path], str]:
    """Return a function that hashes what a recipe's runs left, and what was said of them before."""

    def hash_results(runs: Path) -> str:
        files = [runs / name / COMPARISON]
        for run in finished_runs(runs / name):
            files += [run / one for one in (MANIFEST, FILE, SCORES)]
        return digest([[str(one.relative_to(runs)), _text(one)] for one in files if one.exists()])

    return hash_results


def _text(file: Path) -> str:
    """Return what stands in a file, whatever that is; whoever judges it says what is wrong."""
    return read_whole(file).decode(errors="replace")


def _flat(row: Json) -> dict[str, Any]:
    """Flatten a row of a comparison for a table: a range becomes its two ends."""
    ends = {name: row[name] or (None, None) for name in RANGES}
    kept = {name: one for name, one in row.items() if name not in {*NESTED, *RANGES}}
    least = {f"{name}_least": both[0] for name, both in ends.items()}
    return {**kept, **least, **{f"{name}_most": both[1] for name, both in ends.items()}}


def _section(recipe: TrainingRecipe) -> Any:
    return recipe.compare


def make_study(recipe: TrainingRecipe) -> Study:
    """Make the study of a recipe."""
    section = _section(recipe)
    first = section.claims[0]
    return Study(
        name=recipe.name,
        title=recipe.name.replace("-", " ").capitalize(),
        source="; ".join(dict.fromkeys(one.source for one in section.claims)),
        claim=first.statement,
        cost=f"{len(section.arms) * len(section.seeds)} runs of {recipe.train.max_steps} updates",
        draws=len(section.seeds),
        unit="seeds",
        fixed=True,
        run=make_run(recipe.name),
        # What is claimed, and on what terms, stands in no Python.
        inputs=lambda runs: [
            recipe.model_dump(mode="json"),
            texts(recipe),
            results(recipe.name)(runs),
        ],
    )


def recipes() -> list[TrainingRecipe]:
    """Return the package's recipes with claims that need no GPU."""
    found = [load_recipe(name) for name in list_packaged()]
    found = [one for one in found if one.run.device != "cuda"]
    return [one for one in found if one.compare is not None and one.compare.claims]


STUDIES = tuple(make_study(recipe) for recipe in recipes())
