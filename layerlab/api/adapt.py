"""`layerlab.adapt`: the stages of a recipe; where adaptation, training, evaluation, report meet."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab.adaptation.pipeline.estimate import Forecast, forecast
from layerlab.adaptation.pipeline.plan import list_absent, plan_stages
from layerlab.adaptation.pipeline.processes import run_step
from layerlab.adaptation.pipeline.result import AdaptationResult
from layerlab.adaptation.pipeline.run_stage import StageContext, measure_texts
from layerlab.adaptation.pipeline.stage import MODEL, PROCESSOR, WORDS, Stage, StageStore
from layerlab.adaptation.pipeline.starting_model import check_base
from layerlab.adaptation.pipeline.summary import Tally
from layerlab.adaptation.trainer.own_folder import remove_checkpoints
from layerlab.api import evaluate, train
from layerlab.console.progress import NullProgress, Progress
from layerlab.console.stages import StagesDisplay
from layerlab.data.archives import read_within_limit
from layerlab.data.fingerprint import hash_files
from layerlab.data.places import data_folder
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.evaluation.benchmarks.files import is_here
from layerlab.evaluation.benchmarks.suites import select_benchmarks
from layerlab.evaluation.harness.cache import scorer
from layerlab.evaluation.results.paired_difference import differing, list_untold, paired_differences
from layerlab.experiments.executors.local import run_one
from layerlab.experiments.plan.own_files import Files, load_files
from layerlab.loading.model import LoadedModel, load_model
from layerlab.plugins import load_files as load_own
from layerlab.plugins import paths
from layerlab.recipes.adaptation import AdaptationRecipe, load_adaptation, make_recipe
from layerlab.records.checkpoint_names import remove_partials
from layerlab.records.json_values import Json
from layerlab.report.i18n.language import ENGLISH, language
from layerlab.report.pages.adaptation import check_adaptation_folder, save_adaptation
from layerlab.system.files import OnlyOwn, write_folder
from layerlab.system.hardware import with_threads
from layerlab.system.locks import lock_folder
from layerlab.system.logs import quiet_libraries
from layerlab.system.rng import keep_random_state
from layerlab.system.torch_settings import usual_arithmetic
from layerlab.system.untrusted.trust import trust
from layerlab.system.write_errors import check_out

OUT = Path("layerlab-adaptations")
STAGES, ASKED = "stages", "asked"
FACTS = (
    *("weights_hash", "family", "class", "parameters", "layers", "width", "heads", "kv_heads"),
    *("vocab", "context", "attention"),
)
GivenRecipe = str | PathLike[str] | Mapping[str, Any] | AdaptationRecipe


@dataclass(frozen=True)
class AdaptationPlan:
    """A recipe with its stages, their folders, the language of the page, and files of one's own."""

    recipe: AdaptationRecipe
    stages: tuple[Stage, ...]
    out: Path
    lang: str = ENGLISH
    load: tuple[str, ...] = ()

    @property
    def store(self) -> StageStore:
        """The folders of the stages."""
        return StageStore(self.out / STAGES)


@read_within_limit
@usual_arithmetic()
@keep_random_state()
def adapt(
    recipe: GivenRecipe,
    *,
    out: str | PathLike[str] = OUT,
    progress: bool = True,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    load: Files = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    max_bytes: int | None = None,
) -> AdaptationResult:
    """Adapt a model as a recipe says: text, vocabulary, pretraining, tuning, before and after.

    What an earlier call has finished is kept, what it left half-way is gone on with.

    Args:
        recipe: a TOML file, the name of a recipe of the package, or its content as a dict.
        out: folder under which the recipe has one of its own.
        progress: show all stages on standard error.
        settings: changes of the recipe by path, as `{"pretrain.tokens": 4096}`.
        lang: language of the page.
        load: Python files with the variant of the model that is adapted.
        trust_remote_code: run Python that a model or tokenizer brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a setting is wrong, a text or a model cannot be read, or a package is missing.
    """
    with trust(trust_remote_code, allow_unused=allow_unused):
        found = plan_adaptation(recipe, Path(out), settings, lang, load)
        return run_adaptation(found, progress=progress)


def plan_adaptation(
    recipe: GivenRecipe,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    lang: str = ENGLISH,
    load: Files = (),
    *,
    strict: bool = True,
) -> AdaptationPlan:
    """Plan the stages of a recipe.

    Args:
        strict: whether what is not here is refused; else such a plan can be estimated, and no more.

    Raises:
        UserError: a setting is wrong, what a stage needs is not there, or there is no page in the
            language.
    """
    language(lang)  # an unknown one is refused before the work is done
    check_out(out)
    read = _recipe(recipe)
    read = _load(read.change(settings) if settings else read, load)
    files = tuple(str(Path(one).resolve()) for one in paths(load))
    stages = plan_stages(read, strict=strict)
    check_base(read)
    return AdaptationPlan(read, stages, out / read.name, lang, files)


def _load(recipe: AdaptationRecipe, load: Files) -> AdaptationRecipe:
    """Load the user's files; the recipe of a base that is trained names those that it needs."""
    training = recipe.training()
    if training is None:
        load_own(load, [str(recipe.base.model)] if load else [])
        return recipe
    files = list(load_files(training, load).model.load)
    own = {**recipe.base.set, "model.load": files} if files else recipe.base.set
    return recipe.change({"base.set": own})


@read_within_limit
@usual_arithmetic()
def estimate_adaptation(
    recipe: GivenRecipe,
    *,
    out: str | PathLike[str] = OUT,
    settings: Mapping[str, Any] | None = None,
    load: Files = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    max_bytes: int | None = None,
) -> Forecast:
    """Estimate what the stages of a recipe take, and which are finished; carry out none.

    What the recipe names and is not here is planned by its name.

    Args:
        recipe: as for `adapt`, and so are the others.

    Raises:
        UserError: a setting is wrong, or a file that is here cannot be read.
    """
    with trust(trust_remote_code, allow_unused=allow_unused):
        return estimate_stages(
            plan_adaptation(recipe, Path(out), settings, load=load, strict=False)
        )


def estimate_stages(pipeline: AdaptationPlan) -> Forecast:
    """Estimate what the stages of a plan will take, and which are finished."""
    recipe = pipeline.recipe
    return forecast(recipe, pipeline.stages, pipeline.store, list_absent(recipe))


def run_adaptation(pipeline: AdaptationPlan, *, progress: bool = True) -> AdaptationResult:
    """Run the unfinished stages, and write the report.

    Raises:
        UserError: a stage cannot be carried out.
    """
    arms, store = pipeline.recipe.arms(), pipeline.store
    with ExitStack() as stack:
        stack.enter_context(lock_folder(pipeline.out))
        check_adaptation_folder(pipeline.out)  # refuses before the work what is not to be lost
        stack.enter_context(with_threads(pipeline.recipe.run.threads))
        stages_view: Progress = NullProgress()
        if progress:
            titles = {one.key: one.title(len(arms)) for one in pipeline.stages}
            stages_view = stack.enter_context(StagesDisplay(titles))
        if remark := store.other_base(pipeline.stages):
            stages_view.note(remark)
        for stage in pipeline.stages:
            if _is_done(store.read(stage.key), arms[stage.arms[0]]):
                remove_checkpoints(store.of(stage.key))  # of a process that was killed doing so
                stages_view.end(stage.key, "kept")
                continue
            _carry(
                StageContext(
                    arms[stage.arms[0]],
                    stage,
                    store,
                    partial(stages_view.tell, stage.key),
                    pipeline.load,
                ),
                stages_view,
            )
        content = Tally(pipeline.recipe, pipeline.stages, store).content()
        content |= _compare(pipeline, content)
        page = save_adaptation(content, pipeline.out, pipeline.lang)
    return AdaptationResult(content, page, _models(pipeline))


def _is_done(kept: Json | None, recipe: AdaptationRecipe) -> bool:
    """Return whether a stage is finished, and no benchmark was added or changed since."""
    if kept is None:
        return False
    if ASKED in kept and kept[ASKED] != _identify_questions(recipe):  # 0.1 kept none
        return False
    missed = (one.get("absent") for one in kept.get("result", {}).get("left_out", ()))
    return not any(is_here(find_benchmark(name)) for name in missed if name)


def _carry(context: StageContext, progress: Progress) -> None:
    progress.begin(context.stage.key)
    begun, used = time.monotonic(), time.process_time()
    context.folder.mkdir(parents=True, exist_ok=True)
    remove_partials(context.folder, MODEL, WORDS, "*.json")
    step = {"base": base, "evaluate": evaluate_stage}.get(context.stage.kind, run_step)
    left = step(context)
    left = {PROCESSOR: time.process_time() - used, **left}
    context.store.finish(context.stage, left, time.monotonic() - begun)
    remove_checkpoints(context.folder)
    progress.end(context.stage.key, "finished")


def base(context: StageContext) -> Json:
    """Return the existing base model, or train one from scratch."""
    training = context.recipe.training()
    if training is None:
        name = str(context.recipe.base.model)
        found = load_model(name)
        _keep_words(found, context.folder)
        return {"model": name, "words": WORDS, "result": {"name": found.name, **_facts(found)}}
    task = train.prepare(training, context.folder, progress=False)
    (run,) = task.runs
    result = run_one(run, task.folder(run), _Telling(context, run.recipe.train.max_steps or 1))
    if result["diverged"]:
        raise UserError(f"{result['diverged']}; the run is kept in {task.folder(run)}")
    folder = task.folder(run) / MODEL
    own = {name: result[name] for name in ("updates", "tokens", "nats", "bits_per_byte")}
    place_of = str(folder.relative_to(context.folder))
    facts = {"name": training.name, **_facts(load_model(str(folder))), "trained": own}
    return {"model": place_of, "words": place_of, "result": facts}


def evaluate_stage(context: StageContext) -> Json:
    """Evaluate a model after a stage: held-out text, benchmarks, answers."""
    left_out: list[Json] = []
    asked = _identify_questions(context.recipe)
    scores = measure_texts(
        context, left_out
    )  # benchmarks load the model for themselves: this one is let go
    return {"result": {**scores, **_ask(context, left_out), "left_out": left_out}, ASKED: asked}


def _identify_questions(recipe: AdaptationRecipe) -> Json:
    """Return what benchmarks ask, by the hash of their files, and what scores the answers."""
    section = recipe.evaluate
    if section is None or not section.suite:
        return {}
    found: Json = {"scorer": f"lm_eval {version('lm_eval')} {scorer()}"}
    for benchmark in select_benchmarks(section.suite):
        home = data_folder() / benchmark.folder
        files = sorted(one for one in home.rglob("*") if one.is_file())
        found[benchmark.name] = hash_files((one, str(one.relative_to(home))) for one in files)
    return found


def _ask(context: StageContext, left_out: list[Json]) -> Json:
    """Evaluate benchmark by benchmark; results of an earlier session are kept."""
    section = context.recipe.evaluate
    assert section is not None
    wanted = select_benchmarks(section.suite) if section.suite else ()
    rows: Json = {"benchmarks": [], "subjects": [], "remarks": []}
    for number, benchmark in enumerate(wanted):
        context.tell(f"asking {benchmark.title}", number / len(wanted))
        try:
            content = evaluate.evaluate(
                context.store.model(context.stage.needs["model"]),
                benchmark.name,
                out=context.folder / benchmark.name,
                device=context.recipe.run.device,
                dtype=None if context.recipe.base.dtype == "float32" else context.recipe.base.dtype,
                progress=False,
                shots=section.num_fewshot,
                limit=section.limit,
                batch_size=section.batch_size,
            ).content
        except UserError as error:
            absent = None if is_here(benchmark) else benchmark.name
            left_out.append({"what": benchmark.title, "why": str(error), "absent": absent})
            continue
        for name, found in rows.items():
            found += content[name]
    return rows


def _compare(pipeline: AdaptationPlan, content: Json) -> Json:
    """Compare each model's answers against its base's, question by question."""
    rows: list[Json] = []
    remarks: dict[str, None] = dict.fromkeys(content["remarks"])
    asked = [one for one in pipeline.stages if one.kind == "evaluate"]
    kept = {one.key: (pipeline.store.read(one.key) or {})["result"] for one in asked}
    for stage in asked:
        bases = (one for one in asked if one.after == "base" and stage.arms[0] in one.arms)
        ours = kept[stage.key]["subjects"]
        theirs: list[Any] = next((kept[one.key]["subjects"] for one in bases), [])
        if stage.after != "base" and ours and theirs:
            labels = {"after": stage.after, "arms": list(stage.arms)}
            try:
                rows += [{**labels, **row} for row in paired_differences(ours, theirs, "base")]
            except UserError as error:  # what was left out of one was asked of the other
                remarks[f"{stage.title(len(content['arms']))}: {error}"] = None
            remarks |= dict.fromkeys([*differing(ours, theirs), *list_untold(ours, theirs)])
        remarks |= dict.fromkeys(kept[stage.key]["remarks"])
    return {"differences": rows, "remarks": list(remarks)}


def _models(pipeline: AdaptationPlan) -> dict[str, str]:
    """Return the last model of each arm; of several seeds that of the first."""
    found: dict[str, str] = {}
    for arm, recipe in pipeline.recipe.arms().items():
        first = recipe.pretrain.seeds[0] if recipe.pretrain else None
        for stage in pipeline.stages:
            own = arm in stage.arms and stage.kind in ("base", "embedding", "pretrain", "tune")
            if own and stage.seed in (None, first):
                found[arm] = pipeline.store.model(stage.key)
    return found


class _Telling(NullProgress):
    """Reports a run's journal as the progress of its stage."""

    def __init__(self, context: StageContext, updates: int) -> None:
        self.context, self.updates = context, updates

    def update(self, name: str, event: Mapping[str, Any]) -> None:
        """Report the progress of the training."""
        if event["kind"] == "train":
            text = f"update {event['update']:,} of {self.updates:,}, loss {event['loss']:.4g}"
            self.context.tell(text, event["update"] / self.updates)


def _facts(found: LoadedModel) -> Json:
    """Return the facts of a model without its path."""
    return {name: value for name, value in found.facts().items() if name in FACTS}


def _keep_words(found: LoadedModel, folder: Path) -> None:
    tokenizer = found.tokenizer
    if tokenizer is None:
        raise UserError(
            f"the model {found.name} has no tokenizer beside it; expected its tokenizer.json in "
            "the same folder"
        )

    def fill(empty: Path) -> None:
        tokenizer.save_pretrained(empty)

    with quiet_libraries():
        write_folder(folder / WORDS, fill, "tokenizer", like=OnlyOwn())


def _recipe(given: GivenRecipe) -> AdaptationRecipe:
    if isinstance(given, AdaptationRecipe):
        return given
    return make_recipe(given) if isinstance(given, Mapping) else load_adaptation(given)
