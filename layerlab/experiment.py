"""Training as Python functions: one run, or a comparison; where training meets its report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from layerlab import registry
from layerlab.domain import shown
from layerlab.errors import UserError
from layerlab.judging import Given, Task, judged, recipe_given, stored
from layerlab.measures.checkpoint import quiet
from layerlab.report.comparison import PAGE, save_run
from layerlab.report.language import ENGLISH, language
from layerlab.training.agreement import agree
from layerlab.training.batch import Held
from layerlab.training.compare import compared
from layerlab.training.comparison import Comparison
from layerlab.training.corpus import Corpus, extent, prepare
from layerlab.training.cost import equal_time
from layerlab.training.display import Display
from layerlab.training.footing import same_held
from layerlab.training.forecast import Estimate, estimate
from layerlab.training.journal import read
from layerlab.training.lockstep import allow, in_lockstep
from layerlab.training.outcome import MODEL
from layerlab.training.permission import permit
from layerlab.training.plan import Extent, Run, arms, designed, plan, sides
from layerlab.training.recipe import Recipe
from layerlab.training.runner import Outcome, alone, carry_out, is_here
from layerlab.training.section import DataSection
from layerlab.training.sequence import decided, stretches
from layerlab.training.stored import records_in
from layerlab.training.sweep import swept
from layerlab.training.watch import Silent, Watch
from layerlab.trust import load_pretrained, trusting

OUT = Path("layerlab-runs")
KINDS = ("train", "evaluation", "sample", "note", "monitor", "alarm")


@dataclass(frozen=True)
class Trained:
    """A finished run: its folder, and what came out.

    Attributes:
        folder: with recipe, manifest, events and the model.
        result: loss, speed, memory: the content of result.json.
        page: of the report.
        notes: what has to be known of the text.
    """

    folder: Path
    result: Mapping[str, Any]
    page: Path
    notes: Sequence[str] = ()

    def model(self) -> Any:
        """The trained model, as transformers loads it.

        Raises:
            UserError: the recipe kept none.
        """
        from transformers import AutoModelForCausalLM

        if not (self.folder / MODEL).is_dir():
            raise UserError(
                f"{self.folder} kept no model; write run.model = true, delete it and train again"
            )
        with quiet():
            return load_pretrained(AutoModelForCausalLM, self.folder / MODEL)

    def told(self) -> str:
        """What a terminal shows of it, but for the page, which is written later."""
        found = self.result
        kept = self.folder / MODEL
        model = f"The model: {kept}\n" if kept.is_dir() else ""
        notes = "".join(f"{note}\n" for note in self.notes)
        return (
            f"{found['run']}: {found['nats']:.4f} nats per token, "
            f"{found['bits_per_byte']:.4f} bits per byte, "
            f"{found['tokens']:,} tokens at {found['tokens_per_second']:,.0f} a second\n"
            f"{notes}{model}".rstrip()
        )

    def frame(self, kind: str = "train") -> pd.DataFrame:
        """Events of one kind, a row each; those of a kind that did not happen are none.

        Raises:
            UserError: there is no such kind.
        """
        if kind not in KINDS:
            raise UserError(
                f"a run has no events of the kind {shown(kind)}; expected one of "
                f'{", ".join(KINDS)}: type frame("train")'
            )
        return pd.DataFrame([one for one in read(self.folder) if one["kind"] == kind])


def train(
    recipe: Given,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    trust_recipe: bool = False,
    trust_remote_code: bool = False,
) -> Trained:
    """Train one model as a recipe says; what an earlier call has finished is kept.

    Args:
        recipe: a TOML file, the name of a recipe of the package, or its content as a dict.
        out: folder under which the recipe has one of its own.
        progress: show a live display on standard error.
        settings: changes of the recipe by path, as `{"train.updates": 100}`.
        lang: language of the page.
        trust_recipe: run the Python files that the recipe names; one that `layerlab.load` has read
            needs no more than that.
        trust_remote_code: run Python that a tokenizer brings along; read it before.

    Raises:
        UserError: a setting is wrong, the text cannot be read, or the loss is not finite.

    Example:
        >>> import tempfile
        >>> sizes = {"width": 16, "layers": 1, "heads": 2, "context": 16}
        >>> small = {"train": {"updates": 2, "batch": 2}, "model": sizes, "evaluate": {"blocks": 4}}
        >>> run = train(small, out=tempfile.mkdtemp(), progress=False)
        >>> run.result["updates"], run.model().config.hidden_size
        (2, 16)
    """
    with trusting(trust_remote_code, trust_recipe):
        task = prepared(recipe, Path(out), settings, progress=progress, lang=lang)
        return trained(task, progress=progress)


def trained(
    task: Task, *, progress: bool = True, tell: Callable[[Trained], None] | None = None
) -> Trained:
    """Carry out the one run of a task.

    Args:
        tell: is handed the finished run before its page is written, which may find no room.

    Raises:
        UserError: the recipe compares several, the run fails or diverges, or its page cannot be
            written.
    """
    _check(task, several=False)
    (run,) = task.runs
    with _display(task, progress) as watch:
        result = alone(run, task.folder(run), watch)
    folder = task.folder(run)
    if result["diverged"]:
        raise UserError(f"{result['diverged']}; {_lost(folder, task.lang)}")
    found = Trained(folder, result, folder / PAGE, task.notes)
    if tell is not None:
        tell(found)
    save_run(folder, task.lang)
    return found


def _lost(folder: Path, lang: str) -> str:
    """Where a run that diverged lies; its page is written, if it can be."""
    try:
        return f"its page: {save_run(folder, lang)}; the run is kept in {folder}"
    except UserError as error:
        return f"the run is kept in {folder}, without its page: {error}"


def compare(
    recipe: Given,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    judge: bool = False,
    trust_recipe: bool = False,
    trust_remote_code: bool = False,
) -> Comparison:
    """Train every arm of a recipe with every seed, and judge each against its baseline.

    What an earlier call has finished is kept, what it left half-way is resumed.

    Args:
        recipe: a TOML file, the name of a recipe of the package, or its content as a dict; with a
            compare section.
        out: folder under which the recipe has one of its own, with all runs and the report.
        progress: show a live display on standard error.
        settings: changes of the recipe by path, as `{"compare.seeds": [1, 2, 3, 4]}`.
        lang: language of the page.
        judge: run nothing, read no text, and judge the runs that lie there; then `recipe` may also
            be the folder of a comparison.
        trust_recipe: run the Python files that the recipe names; one that `layerlab.load` has read
            needs no more than that.
        trust_remote_code: run Python that a tokenizer brings along; read it before.

    Raises:
        UserError: a setting is wrong, the text cannot be read, or runs differ in anything that the
            recipe does not declare.
    """
    with trusting(trust_remote_code, trust_recipe):
        if judge:
            return judged(stored(recipe, Path(out), settings, lang=lang))
        task = prepared(recipe, Path(out), settings, progress=progress, lang=lang)
        return contested(task, progress=progress)


def contested(
    task: Task, *, progress: bool = True, tell: Callable[[Comparison], None] | None = None
) -> Comparison:
    """Carry out all runs of a task, and judge them.

    Args:
        tell: as for `judged`.

    Raises:
        UserError: the recipe compares nothing, or runs differ in what it does not declare.
    """
    comparison, out = _check(task, several=True), task.out / "runs"
    outcomes: list[Outcome] = []
    with _display(task, progress) as watch:

        def carry(runs: Sequence[Run]) -> None:
            outcomes.extend(carry_out(runs, out, task.recipe.run, watch))

        for runs in stretches(comparison, task.runs):
            if comparison.lockstep:
                in_lockstep(runs, out, watch)
            elif comparison.search == "optuna":
                swept(comparison, runs, out, carry)
            else:
                carry(runs)
            # Whatever a look has decided stays so: there is nothing left to run for.
            if comparison.looks and decided(compared(task.recipe, records_in(out)).content):
                break
    return judged(task, [one for one in outcomes if one.result is None], tell=tell)


def _check(task: Task, *, several: bool) -> Any:
    """The compare section of a recipe, where it has one as it should."""
    section, name = task.recipe.compare, shown(task.recipe.name)
    if several and section is None:
        raise UserError(
            f"the recipe {name} has no compare section; "
            "type layerlab train in place of layerlab compare"
        )
    if section is not None and not several:
        raise UserError(
            f"the recipe {name} compares several arms; "
            "type layerlab compare in place of layerlab train"
        )
    return section


def estimated(task: Task, *, several: bool) -> Estimate:
    """What the runs of a recipe cost, before any of them runs.

    Args:
        several: whether they are to be compared.

    Raises:
        UserError: the recipe compares nothing, or should not.
    """
    _check(task, several=several)
    section, evaluated, runs = task.recipe.compare, task.recipe.evaluate, list(task.runs)
    held = Held(task.corpora[runs[0].arm], runs[0].recipe.data.block or 1, evaluated.blocks)
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


def prepared(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    progress: bool = True,
    lang: str = ENGLISH,
) -> Task:
    """A recipe with its text read and its runs planned.

    Raises:
        UserError: a setting is wrong, the text cannot be read, runs would differ in what is not
            declared, or there is no page in the language.
    """
    language(lang)  # an unknown one is refused before the work is done
    read = recipe_given(recipe, settings or {})
    registry.load_named(read.model.load)
    found = sides(read)
    for side in found.values():
        permit(side)
    if read.compare is not None and read.compare.lockstep:
        allow(found)
    with _reading(progress) as told:
        made = _prepared([read, *found.values()], told)
    own = {arm: side for arm, side in found.items() if side.data.text() != read.data.text()}
    runs = plan(read, _extent(read, made), {arm: _extent(side, made) for arm, side in own.items()})
    corpora = {arm: made[side.data.text()] for arm, side in found.items()}
    same_held(runs, corpora)
    if read.compare is not None:
        agree(read.compare, runs)
    if read.compare is not None and read.compare.match == "time":
        runs = equal_time(runs, arms(read.compare, read), read.compare.baseline)
    return Task(recipe=read, corpora=corpora, runs=tuple(runs), out=out / read.name, lang=lang)


def _prepared(
    recipes: Sequence[Recipe], told: Callable[[str, float], None] | None
) -> dict[DataSection, Corpus]:
    """The corpus of each text that recipes ask for, made once."""
    texts = dict.fromkeys(recipe.data.text() for recipe in recipes)
    return {text: prepare(text, progress=told) for text in texts}


def _extent(recipe: Recipe, corpora: Mapping[DataSection, Corpus]) -> Extent:
    block = recipe.data.block or designed(recipe).shape.context
    return extent(corpora[recipe.data.text()], block)


@contextmanager
def _reading(wanted: bool) -> Iterator[Callable[[str, float], None] | None]:
    """What is being done with the text, on a terminal."""
    console = Console(stderr=True, highlight=False)
    if not wanted or not console.is_terminal:
        yield None
        return
    with console.status("") as status:
        yield lambda what, share: status.update(Text(f"{what} {share:.0%}" if share else what))


@contextmanager
def _display(task: Task, wanted: bool) -> Iterator[Watch]:
    if not wanted:
        yield Silent()
        return
    with Display(task.runs) as display:
        for note in task.notes:
            display.note(note)
        yield display
