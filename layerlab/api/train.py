"""Training as Python functions: one run, or a comparison; where training meets its report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab.api.stages.finished_models import load_questions, plan_scores, score_runs
from layerlab.api.training_result import TrainingResult
from layerlab.data.archives import read_within_limit
from layerlab.errors import UserError
from layerlab.experiments import session
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.check_page import check_page_folder
from layerlab.experiments.executors.local import RunOutcome, run_one
from layerlab.experiments.judging import find_stored
from layerlab.experiments.judging import judge as judge_runs
from layerlab.experiments.page_folder import page_folder
from layerlab.experiments.plan.factors import planned_factors
from layerlab.experiments.plan.own_files import Files
from layerlab.experiments.session import (
    Given,
    PreparedRecipe,
    check_task,
    display,
    estimate_task,
    run,
)
from layerlab.experiments.training_plan import SizePlan, TrainingPlan
from layerlab.records.parquet.folded_runs import fold_runs
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.comparison import PAGE, check_run_page, save_comparison, save_run
from layerlab.system.torch_settings import usual_arithmetic
from layerlab.system.untrusted.trust import trust
from layerlab.system.write_errors import check_out

OUT = Path("layerlab-runs")


@read_within_limit
@usual_arithmetic()
def estimate_runs(
    recipe: Given,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    arms: str | Iterable[str] | None = None,
    ladder: int | None = None,
    settings: Mapping[str, Any] | None = None,
    load: Files = (),
    trust_recipe: bool = False,
    trust_remote_code: bool = False,
    max_bytes: int | None = None,
) -> TrainingPlan:
    """Estimate what the runs of a recipe take, and run none of them.

    Args:
        recipe: of one run or of a comparison, as for `train` and `compare`.
        out: folder under which the recipe has one of its own.
        progress: tell on standard error how far its text is read.
        arms: variants to compare, in place of the recipe's.
        ladder: so many sizes, each three times the last, up to the recipe's.
        settings: changes of the recipe by path, as `{"train.max_steps": 100}`.
        load: Python files with variants of your own, which the recipe or its arms may name.
        trust_recipe: run the Python files that the recipe names; its commands run for no plan.
        trust_remote_code: run Python that a tokenizer brings along; read it before.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a setting is wrong, or the text cannot be read.
    """
    changes = _list_changes(arms, ladder, settings)
    with trust(trust_remote_code, trust_recipe):
        task = prepare(recipe, Path(out), changes, load=load, progress=progress)
        return plan_task(task, several=task.recipe.compare is not None)


def plan_task(task: PreparedRecipe, *, several: bool) -> TrainingPlan:
    """Plan the runs of a task, size by size.

    Raises:
        UserError: the recipe compares nothing, or should not.
    """
    sizes = []
    for one in task.sizes:
        found = estimate_task(one, several=several)
        rows = planned_factors(one.recipe, one.runs)
        sizes.append(SizePlan(found, rows, plan_scores(one, found.runs)))
    return TrainingPlan(task, sizes)


def _list_changes(
    arms: str | Iterable[str] | None, ladder: int | None, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return changes of a recipe by path; those by their path go before."""
    found: dict[str, Any] = {} if ladder is None else {"ladder.count": ladder}
    if arms is not None:
        found["compare.arms"] = [arms] if isinstance(arms, str) else list(arms)
    return {**found, **(settings or {})}


@read_within_limit
@usual_arithmetic()
def train(
    recipe: Given,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    load: Files = (),
    trust_recipe: bool = False,
    trust_remote_code: bool = False,
    max_bytes: int | None = None,
) -> TrainingResult:
    """Train one model as a recipe says; a finished run is not repeated.

    Args:
        recipe: a TOML file, the name of a recipe of the package, or its content as a dict.
        out: folder under which the recipe has one of its own.
        progress: show a live display on standard error.
        settings: changes of the recipe by path, as `{"train.max_steps": 100}`.
        lang: language of the page.
        load: Python files with variants of your own, which the recipe or its arms may name.
        trust_recipe: run the Python files that the recipe names; one that `load` names, or
            `layerlab.load` has read, needs no more than that.
        trust_remote_code: run Python that a tokenizer brings along; read it before.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a setting is wrong, the text cannot be read, or the loss is not finite.

    Example:
        >>> import tempfile
        >>> sizes = {"width": 16, "layers": 1, "heads": 2, "context": 16}
        >>> steps, evaluate = {"max_steps": 2, "batch_size": 2}, {"max_eval_blocks": 4}
        >>> small = {"train": steps, "model": sizes, "evaluate": evaluate}
        >>> run = train(small, out=tempfile.mkdtemp(), progress=False)
        >>> run.result["updates"], run.model().config.hidden_size
        (2, 16)
    """
    with trust(trust_remote_code, trust_recipe):
        task = prepare(recipe, Path(out), settings, load=load, progress=progress, lang=lang)
        return train_task(task, progress=progress)


def train_task(
    task: PreparedRecipe,
    *,
    progress: bool = True,
    tell: Callable[[TrainingResult], None] | None = None,
) -> TrainingResult:
    """Execute the one run of a task.

    Args:
        tell: is handed the finished run before its page is written, which may find no room.

    Raises:
        UserError: the recipe compares several, the run fails or diverges, or its page cannot be
            written.
    """
    check_task(task, several=False)
    (run,) = task.runs
    check_run_page(task.folder(run))
    with display(task, progress) as bar:
        result = run_one(run, task.folder(run), bar)
    folder = task.folder(run)
    if result["diverged"]:
        raise UserError(f"{result['diverged']}; {_save_diverged(folder, task.lang)}")
    found = TrainingResult(folder, result, folder / PAGE, task.notes)
    if tell is not None:
        tell(found)
    save_run(folder, task.lang)
    return found


def _save_diverged(folder: Path, lang: str) -> str:
    """Return the error of a diverged run, after writing its page if possible."""
    try:
        return f"its page: {save_run(folder, lang)}; the run is kept in {folder}"
    except UserError as error:
        return f"the run is kept in {folder}, without its page: {error}"


@read_within_limit
@usual_arithmetic()
def compare(
    recipe: Given,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    arms: str | Iterable[str] | None = None,
    ladder: int | None = None,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    judge: bool = False,
    fold: bool = False,
    load: Files = (),
    trust_recipe: bool = False,
    trust_remote_code: bool = False,
    max_bytes: int | None = None,
) -> Comparison:
    """Train every arm of a recipe with every seed, and judge each against its baseline.

    What an earlier call has finished is kept, what it left half-way is resumed.

    Args:
        recipe: a TOML file, the name of a recipe of the package, or its content as a dict; with a
            compare section.
        out: folder under which the recipe has one of its own, with all runs and the report.
        progress: show a live display on standard error.
        arms: variants to compare, in place of the recipe's.
        ladder: compare at so many sizes, each three times the last, up to the recipe's.
        settings: changes of the recipe by path, as `{"compare.seeds": [1, 2, 3, 4]}`.
        lang: language of the page.
        judge: run nothing, read no text, and judge the runs that lie there; then `recipe` may also
            be the folder of a comparison.
        fold: write the finished runs into two files beside `runs/` as well, small enough to be
            carried to another machine, where the comparison goes on from them.
        load: Python files with variants of your own, which the recipe or its arms may name.
        trust_recipe: run the Python files that the recipe names, and its commands; a file that
            `load` names, or `layerlab.load` has read, needs no more than that.
        trust_remote_code: run Python that a tokenizer brings along; read it before.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a setting is wrong, the text cannot be read, or runs differ in anything that the
            recipe does not declare.
    """
    settings = _list_changes(arms, ladder, settings)
    with trust(trust_remote_code, trust_recipe):
        if judge:
            task = find(recipe, Path(out), settings, load=load, lang=lang)
            return judge_task(task, fold=fold)
        task = prepare(recipe, Path(out), settings, load=load, progress=progress, lang=lang)
        return compare_task(task, progress=progress, fold=fold)


def prepare(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    load: Files = (),
    progress: bool = True,
    lang: str = ENGLISH,
) -> PreparedRecipe:
    """Read the text of a recipe and plan its runs.

    Raises:
        UserError: as `session.prepare`, or there is no page in the language.
    """
    language(lang)  # an unknown one is refused before the work is done
    check_out(out)
    return replace(session.prepare(recipe, out, settings, load=load, progress=progress), lang=lang)


def find(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    load: Files = (),
    lang: str = ENGLISH,
) -> PreparedRecipe:
    """Return a recipe with its runs as recorded in their folders.

    Raises:
        UserError: as `find_stored`, or there is no page in the language.
    """
    language(lang)
    return replace(find_stored(recipe, out, settings, load), lang=lang)


def compare_task(
    task: PreparedRecipe,
    *,
    progress: bool = True,
    fold: bool = False,
    tell: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Execute all runs of a task, judge them, and write their report.

    Args:
        fold: as for `judge_task`.
        tell: as for `judge_task`.

    Raises:
        UserError: the recipe compares nothing, runs differ in what it does not declare, what
            finished models are to be scored by is not here, or the folder of its page holds
            something else.
    """
    check_page_folder(page_folder(task))
    load_questions(task.recipe)
    outcomes = run(task, progress=progress, finish=score_runs)
    failed = [one for one in outcomes if one.result is None]
    return judge_task(task, failed, fold=fold, tell=tell)


def judge_task(
    task: PreparedRecipe,
    failed: Sequence[RunOutcome] = (),
    *,
    fold: bool = False,
    tell: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Judge the finished runs of a task, and write the report.

    Args:
        failed: outcomes of runs that failed, to be told with the verdicts.
        fold: write the finished runs into two files too.
        tell: is handed the comparison before its report is written, which may find no room.

    Raises:
        UserError: as `judging.judge` and `fold_runs`, or the report cannot be written, or would
            replace something else.
    """
    folder = page_folder(task)
    check_page_folder(folder)
    comparison = judge_runs(task, failed)
    if tell is not None:
        tell(comparison)
    save_comparison(comparison.content, folder, task.lang, shared=task.out)
    if fold:
        fold_runs(task.out)
    return comparison
