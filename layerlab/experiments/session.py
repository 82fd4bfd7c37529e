"""Prepares a recipe and executes its runs, before any verdict or page."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab.console.progress import NullProgress, Progress
from layerlab.console.runs import RunsDisplay
from layerlab.console.status import show_status
from layerlab.corpus.batches import EvalBlocks
from layerlab.corpus.corpus import Corpus, extent
from layerlab.corpus.corpus import prepare as prepare_corpus
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.estimate.equal_time import equal_time
from layerlab.experiments.estimate.estimate import Estimate, estimate
from layerlab.experiments.executors.local import (
    RunOutcome,
    is_here,
    read_finished_result,
    run_all,
)
from layerlab.experiments.executors.lockstep import run_in_lockstep
from layerlab.experiments.executors.parallel_trial import choose_parallel
from layerlab.experiments.executors.run_locks import lock_runs
from layerlab.experiments.executors.worker_pool import WorkerPool
from layerlab.experiments.plan.arm_checks import check_comparable, check_same_eval_text
from layerlab.experiments.plan.ladder import Rung, baseline_of, name_size, plan_rungs
from layerlab.experiments.plan.lr_search import search_rates
from layerlab.experiments.plan.own_files import Files, load_files
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.statistics.looks import is_decided, stretches
from layerlab.experiments.stored_runs import runs_of_recipe, sort_out
from layerlab.recipes.arms import arms, sides
from layerlab.recipes.checks import check_arms, check_sides, refuse_single_arm
from layerlab.recipes.training import TrainingRecipe, load_recipe, make_recipe
from layerlab.recipes.training_sections import DataSection, RunSection
from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.records.run_files import RUNS
from layerlab.system.files import check_links
from layerlab.training.flops import peak_of
from layerlab.training.run_spec import RunSpec, as_named, design_model

Given = str | PathLike[str] | Mapping[str, Any] | TrainingRecipe


@dataclass(frozen=True)
class PreparedRecipe:
    """A prepared recipe: its runs and their folder.

    Attributes:
        out: folder of the recipe.
        corpora: the text of each arm as tokens; none where runs are only judged.
        lang: language of the page.
        rungs: the sizes of a ladder with the runs of each; none where all have one size.
    """

    recipe: TrainingRecipe
    runs: tuple[RunSpec, ...]
    out: Path
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    lang: str = "en"
    rungs: tuple[Rung, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Remarks on the texts for the reader of a result, each once."""
        return list(dict.fromkeys(note for one in self.corpora.values() for note in one.notes))

    def folder(self, run: RunSpec) -> Path:
        """Return the folder of a run."""
        return self.out / RUNS / run.name

    @property
    def sizes(self) -> "list[PreparedRecipe]":
        """The comparison at each size of a ladder; itself where there is none."""
        if not self.rungs:
            return [self]
        return [replace(self, recipe=one.recipe, runs=one.runs, rungs=()) for one in self.rungs]


def prepare(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    load: Files = (),
    progress: bool = True,
) -> PreparedRecipe:
    """Read the text of a recipe and plan its runs.

    Args:
        load: Python files of the user's own; each run names those that its model needs.

    Raises:
        UserError: a setting is wrong, the text cannot be read, or runs would differ in what is not
            declared.
    """
    read = load_files(recipe_given(recipe, settings or {}), load)
    check_links(out / read.name)
    unfold_runs(out / read.name)
    found = check_sides(read)
    with show_status(progress) as status:
        by_section = _prepare([read, *found.values()], status)
    corpora = {arm: by_section[side.data.text()] for arm, side in found.items()}
    task = PreparedRecipe(recipe=read, corpora=corpora, runs=(), out=out / read.name)
    kept = {one.name for one in (task.out / RUNS).glob("*")}
    if read.ladder is None:
        return replace(task, runs=_plan(read, by_section, corpora, kept))
    sizes = []
    for one in plan_rungs(read, _extent(baseline_of(read), by_section)):
        with name_size(one):
            sizes.append(replace(one, runs=_plan(one.recipe, by_section, corpora, kept)))
    runs = tuple(run for one in sizes for run in one.runs)
    return replace(task, runs=runs, rungs=tuple(sizes))


def _plan(
    recipe: TrainingRecipe,
    by_section: Mapping[DataSection, Corpus],
    corpora: Mapping[str, Corpus],
    kept: Collection[str],
) -> tuple[RunSpec, ...]:
    """Plan the runs of one size, and check that they can be compared.

    Args:
        kept: names of the folders of runs that are there.
    """
    own = {
        arm: _extent(side, by_section)
        for arm, side in sides(recipe).items()
        if side.data.text() != recipe.data.text()
    }
    runs = plan(recipe, _extent(recipe, by_section), own)
    check_same_eval_text(runs, corpora)
    if recipe.compare is not None:
        check_comparable(recipe.compare, runs)
    if recipe.compare is not None and recipe.compare.match == "time":
        runs = equal_time(runs, arms(recipe.compare, recipe))
    return tuple(as_named(run, kept) for run in runs)


def recipe_given(given: Given, settings: Mapping[str, Any]) -> TrainingRecipe:
    """Return a recipe from a TOML file, a packaged name, a table, or a recipe.

    Raises:
        UserError: there is none, or a setting is wrong.
    """
    if isinstance(given, TrainingRecipe):
        return given.change(settings)
    if isinstance(given, Mapping):
        return make_recipe(given, settings=settings)
    return load_recipe(given, settings)


Finish = Callable[[PreparedRecipe, Sequence[RunSpec], Progress], None]


def run(
    task: PreparedRecipe, *, progress: bool = True, finish: Finish = lambda *given: None
) -> list[RunOutcome]:
    """Execute all runs of a comparison, or as many as its interim looks ask for.

    Args:
        finish: is handed the runs that have ended, before a look is taken at them.

    Returns:
        What became of each run; one without a result has failed.

    Raises:
        UserError: the recipe compares nothing.
    """
    comparison = check_task(task, several=True)
    # All at once, so that no slot waits for the end of a size; side by side, only what has one.
    parts = task.sizes if comparison.lockstep or comparison.search == "optuna" else [task]
    with display(task, progress) as bar, closing(WorkerPool()) as pool:
        settings = _settle(task, bar)
        carry = partial(_carry_out, settings, progress=bar, pool=pool, finish=finish)
        return [outcome for part in parts for outcome in carry(part)]


def _settle(task: PreparedRecipe, progress: Progress) -> RunSection:
    """Return how runs are carried out, once it has been tried how many at once are fastest."""
    settings = task.recipe.run
    if settings.max_parallel != "auto" or check_task(task, several=True).lockstep:
        return settings
    left = [run for run in task.runs if read_finished_result(run, task.folder(run)) is None]
    if len(left) < 2:
        return settings
    with lock_runs(map(task.folder, left)):  # else a second command would try as well, beside it
        choice = choose_parallel(left, settings, progress)
    progress.note(choice.text)
    return settings.model_copy(update={"max_parallel": choice.count})


def _carry_out(
    settings: RunSection,
    task: PreparedRecipe,
    progress: Progress,
    pool: WorkerPool,
    finish: Finish,
) -> list[RunOutcome]:
    comparison, out = check_task(task, several=True), task.out / RUNS
    outcomes: list[RunOutcome] = []

    def carry(runs: Sequence[RunSpec]) -> None:
        outcomes.extend(run_all(runs, out, settings, progress, pool=pool))

    for runs in stretches(comparison, task.runs):
        if comparison.lockstep:
            run_in_lockstep(runs, out, progress)
        elif comparison.search == "optuna":
            search_rates(comparison, runs, out, carry)
        else:
            carry(runs)
        ended = {one.name: one for one in (*runs, *(outcome.run for outcome in outcomes))}
        finish(task, list(ended.values()), progress)
        # Whatever a look has decided stays so: there is nothing left to run for.
        if comparison.looks:
            records, _ = runs_of_recipe(comparison, task.runs, sort_out(out)[0])
            if is_decided(compare_runs(task.recipe, records).content):
                break
    return outcomes


def estimate_task(task: PreparedRecipe, *, several: bool) -> Estimate:
    """Estimate what the runs of a recipe cost, before any of them runs.

    Args:
        several: whether they are to be compared.

    Raises:
        UserError: the recipe compares nothing, or should not.
    """
    check_task(task, several=several)
    section, evaluated, runs = task.recipe.compare, task.recipe.evaluate, list(task.runs)
    held = EvalBlocks(
        task.corpora[runs[0].arm], runs[0].recipe.data.block_size or 1, evaluated.max_eval_blocks
    )
    if section is not None and section.search == "optuna":
        runs = [run for run in runs if run.rate == runs[0].rate] * section.trials
    return estimate(
        runs,
        task.recipe.run,
        validation_tokens=held.tokens,
        # A single run has a process of its own only where it has several, or a cluster's.
        processes=section is not None or not is_here(task.recipe.run),
        lockstep=section is not None and section.lockstep,
    )


def check_task(task: PreparedRecipe, *, several: bool) -> Any:
    """Return the compare section of a recipe, which it must have.

    Raises:
        UserError: it compares nothing, or should not.
    """
    refuse_single_arm(task.recipe)
    return check_arms(task.recipe, several=several)


def _prepare(
    recipes: Sequence[TrainingRecipe], progress: Callable[[str, float], None] | None
) -> dict[DataSection, Corpus]:
    """Prepare the corpus of each text that recipes ask for, each once."""
    texts = dict.fromkeys(recipe.data.text() for recipe in recipes)
    return {text: prepare_corpus(text, progress=progress) for text in texts}


def _extent(recipe: TrainingRecipe, corpora: Mapping[DataSection, Corpus]) -> CorpusSize:
    block = recipe.data.block_size or design_model(recipe).shape.context
    return extent(corpora[recipe.data.text()], block)


@contextmanager
def display(task: PreparedRecipe, wanted: bool) -> Iterator[Progress]:
    """Show the runs of a task on standard error, where that is wanted."""
    if not wanted:
        yield NullProgress()
        return
    lengths = {run.name: run.recipe.train.max_steps or 1 for run in task.runs}
    with RunsDisplay(lengths, peak=_peak(task)) as display:
        for note in task.notes:
            display.note(note)
        yield display


def _peak(task: PreparedRecipe) -> float | None:
    """Return the FLOPs per second that all processes of a run could reach; None if unknown."""
    if not task.runs:
        return None
    first = task.runs[0].recipe
    peak = peak_of(first)
    return None if peak is None else peak * first.run.num_processes
