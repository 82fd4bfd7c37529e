"""`layerlab train` and `layerlab compare`; heavy imports only inside."""

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from layerlab.cli.arguments.early_checks import check_formats, check_loads
from layerlab.cli.arguments.options import AsJson, Lang, Load, Quiet, RecipeArgument
from layerlab.cli.arguments.recipe_checks import check_model, check_scoring, check_texts
from layerlab.console.tables import say, say_wrapped, show, show_json, show_result
from layerlab.data.archives import limit_archives
from layerlab.errors import UserError
from layerlab.known_names import VARIANTS
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS
from layerlab.records.parse import toml_of
from layerlab.records.run_files import COMPARISON
from layerlab.system.signals import explain_interruption
from layerlab.system.untrusted.trust import REMOTE, add_options, trust
from layerlab.validation import short_repr

OUT = Path("layerlab-runs")
SMALLEST = "smoke"
KEPT = "what is finished and every checkpoint is kept"

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a setting: train.max_steps=100; may be repeated.",
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of all recipes' runs.")]
Planned = Annotated[bool, typer.Option("--plan", help="Print runs, cost and time; run nothing.")]

TRUST = Annotated[
    bool, typer.Option("--trust-recipe", help="Run every file and command that the recipe names.")
]


def trust_recipes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that let a recipe, its model and its tokenizer run Python."""
    options = {"trust_remote_code": (REMOTE, False), "trust_recipe": (TRUST, False)}
    return limit_archives(add_options(command, trust, options))


class MetricBlock(StrEnum):
    """A metric block in another program's words."""

    run_clm = "run-clm"


@trust_recipes
def train(
    recipe: RecipeArgument = None,
    settings: SetOption = None,
    out: Out = OUT,
    planned: Planned = False,
    metrics: Annotated[
        MetricBlock | None, typer.Option(help="Print the metrics as transformers' run_clm.py does.")
    ] = None,
    load: Load = None,
    lang: Lang = "en",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train one model as a recipe says.

    Type the same again to resume it.
    """
    if metrics is not None and as_json:
        raise UserError(
            "--metrics run-clm prints a block of text, and --json JSON; expected one of the two: "
            "leave one out"
        )
    if recipe is None:
        _catalogue(single=True)
        return
    given = _check_recipe(recipe, read_settings(settings or ()), load, several=False, read=True)

    # Late: it needs torch, and what is refused above does not.
    from layerlab.api import train as experiment

    task = experiment.prepare(given, out, load=load or (), progress=not quiet, lang=lang)
    if planned:
        _plan(task, as_json, several=False)
        return

    def tell(found: Any) -> None:
        if metrics is not None:
            from layerlab.experiments.run_clm_metrics import block

            say(block(found.folder))
        elif as_json:
            show_json(found.to_dict())
        else:
            say(found.summary())

    with explain_interruption(KEPT):
        found = experiment.train_task(task, progress=not quiet, tell=tell)
    if metrics is None and not as_json:
        say(f"The page: {found.page}")


@trust_recipes
def compare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A TOML file, or a name; with --judge also a comparison's folder; "
            "the list if left out.",
        ),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Variants to compare, in place of the recipe's."),
    ] = None,
    ladder: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Compare at N sizes, each three times the last, up to the recipe's."
        ),
    ] = None,
    settings: SetOption = None,
    out: Out = OUT,
    planned: Planned = False,
    judge: Annotated[
        bool, typer.Option("--judge", help="Run nothing, read no text; judge what is finished.")
    ] = False,
    fold: Annotated[
        bool,
        typer.Option(
            "--fold", help="Write the finished runs into two files, to go on from elsewhere."
        ),
    ] = False,
    load: Load = None,
    lang: Lang = "en",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train variants on equal terms and judge them.

    Type the same again to resume.
    """
    if planned and fold:
        raise UserError(
            "--plan writes nothing, and --fold the finished runs into two files; expected one of "
            "the two: leave one out"
        )
    if recipe is None:
        _catalogue(single=False)
        return
    if ladder is not None and ladder < 2:
        raise UserError(
            f"--ladder is {ladder}; expected a number of sizes, two or more: type --ladder 3"
        )
    climbs = [] if ladder is None else [f"ladder.count={ladder}"]
    changes = read_settings([*_name_arms(arms), *climbs, *(settings or ())])
    stored = judge and not planned
    if not (stored and Path(recipe).is_dir()):
        recipe, changes = _check_recipe(recipe, changes, load, several=True, read=not judge), {}
        if planned or not judge:
            check_scoring(recipe, run=not planned)

    # Late: it needs torch, and what is refused above does not.
    from layerlab.api import train as experiment
    from layerlab.experiments.page_folder import describe_other, page_folder

    if stored:
        task = experiment.find(recipe, out, changes, load=load or (), lang=lang)
    else:
        task = experiment.prepare(
            recipe, out, changes, load=load or (), progress=not quiet, lang=lang
        )
    if planned:
        _plan(task, as_json, several=True)
        return

    def tell(found: Any) -> None:
        show_result(found, as_json, found.table)

    with explain_interruption(KEPT):
        if judge:
            comparison = experiment.judge_task(task, fold=fold, tell=tell)
        else:
            comparison = experiment.compare_task(task, progress=not quiet, fold=fold, tell=tell)
    if not as_json:
        folder = page_folder(task)
        if (other := describe_other(task)) is not None:
            say(f"{task.out / 'report.html'} {other} and is left as it is.")
        say(f"The page: {folder / 'report.html'}")
        if fold:
            say(f"The finished runs: {task.out / MANIFESTS} and {task.out / CURVES}")
            say(f"What was shown of them: {folder / COMPARISON}")
    if comparison.failed:
        raise typer.Exit(1)


def suggest_arms(
    rest: Sequence[str], *, recipe: str | None, arms: str | None = None, **_: Any
) -> str:
    """Return what to type where names of variants stand side by side; empty where others do."""
    named = [] if arms is None else arms.split(",")
    if recipe in VARIANTS:
        recipe, named = SMALLEST, [recipe, *named]
    if not all(one in VARIANTS for one in rest):
        return ""
    return f"type layerlab compare {recipe} --arms {','.join([*named, *rest])}"


def _check_recipe(
    recipe: str,
    changes: dict[str, Any],
    load: Sequence[Path] | None,
    *,
    several: bool,
    read: bool,
) -> Any:
    """Return a recipe that exists, can be carried out, and compares several known arms or none."""
    from layerlab.recipes.checks import check_arms, check_sides, refuse_single_arm
    from layerlab.recipes.training import load_recipe

    found = load_recipe(recipe, changes)
    check_arms(found, several=several)
    if read:
        refuse_single_arm(found)
    check_loads(load)
    sides = check_sides(found).values()
    own = bool(load) or any(side.model.load for side in sides)
    for side in sides:
        check_model(side.model, own=own)
        check_formats(side.emulate.format)
        if read:
            check_texts(side.data)
    return found


def _name_arms(names: str | None) -> list[str]:
    """Return the setting that `--arms` stands for.

    Raises:
        UserError: a name is empty.
    """
    if names is None:
        return []
    arms = [name.strip() for name in names.split(",")]
    if not all(arms):
        raise UserError(
            f"--arms is {short_repr(names)}; expected names of variants with commas between them: "
            "type for example --arms llama,gpt2"
        )
    return [f"compare.arms={json.dumps(arms, ensure_ascii=False)}"]


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Return settings as typed: a TOML value where it is one, else text.

    Raises:
        UserError: a word without a path or a value.
    """
    found: dict[str, Any] = {}
    for word in pairs:
        path, sign, value = word.partition("=")
        if not sign or not path.strip() or not value.strip():
            raise UserError(
                f"cannot read the setting {short_repr(word)}; expected PATH=VALUE: "
                "type for example --set train.max_steps=100"
            )
        if (name := path.strip()) in found:
            raise UserError(f"--set {short_repr(name)} is given twice; type it once")
        try:
            found[name] = toml_of(f"value = {value}")["value"]
        except ValueError:
            found[name] = value
    return found


def _plan(task: Any, as_json: bool, *, several: bool) -> None:
    """Print the cost of a task's runs, how arms differ, and remarks on their texts."""
    from layerlab.api.train import plan_task
    from layerlab.experiments.estimate.ladder import describe_rung

    plan = plan_task(task, several=several)
    if as_json:
        show_json(plan.to_dict())
        return
    for index, one in enumerate(plan.sizes):
        if task.rungs:
            say(describe_rung(task.rungs[index]))
        show(one.estimate.table)
        for line in one.remarks():
            say(line)
    for line in plan.remarks():
        say(line)


def _catalogue(*, single: bool) -> None:
    """List names, purposes and sizes of the packaged recipes.

    Args:
        single: leave out those that compare.
    """
    from rich.table import Table
    from rich.text import Text

    from layerlab.recipes.training import list_packaged, load_recipe

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("recipe", "purpose", "arms x seeds"):
        table.add_column(heading)
    # The smallest first: it is what somebody who looks at a list tries.
    for name in sorted(list_packaged(), key=lambda name: (name != SMALLEST, name)):
        found = load_recipe(name)
        if single and found.compare is not None:
            continue
        size = "one run" if found.compare is None else _size(found)
        table.add_row(Text(name, style="bold", no_wrap=True), Text(found.about), Text(size))
    show(table)
    if not single:
        say_wrapped(
            "A recipe of one run is for layerlab train; --arms makes a comparison of it:\n"
            "layerlab compare smoke --arms llama,gpt2"
        )


def _size(recipe: Any) -> str:
    comparison, ladder = recipe.compare, recipe.ladder
    rates = f" x {len(comparison.learning_rates)} rates" if comparison.learning_rates else ""
    sizes = "" if ladder is None else f" x {ladder.steps} sizes"
    return f"{len(comparison.arms)} x {len(comparison.seeds)}{rates}{sizes}"
