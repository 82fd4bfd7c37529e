"""Plans the stages of a recipe, each once for all arms that share it."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layerlab import builtin
from layerlab.adaptation.pipeline.stage import GIVEN, KINDS, Stage
from layerlab.data.cleaning.clean import KEEP_ALL
from layerlab.data.cleaning.deduplication import check_near
from layerlab.data.fingerprint import fingerprint
from layerlab.data.places import find_text
from layerlab.data.shared_files import describe_learned
from layerlab.data.sources import check_source, open_source
from layerlab.errors import UserError, describe_install
from layerlab.loading.folders import check_found, find_folder, input_files, list_sources
from layerlab.loading.weights.saved import configuration
from layerlab.model.config import LabConfig
from layerlab.model.preset import presets
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import (
    BenchmarkSection,
    CleanSection,
    PretrainSection,
    RowsSection,
)
from layerlab.recipes.training_sections import Source
from layerlab.records.renamed_settings import settings_of_0_1
from layerlab.system.logs import quiet_libraries
from layerlab.training.run_spec import own_code
from layerlab.validation import expand_home
from layerlab.variants.registry import code_beside

CODE = "code"  # that no recipe and no folder of a model names: SHA-256 by name
ENGINES = {"lm_eval": "eval", "jieba": "eval"}


@dataclass
class PlanBuilder:
    """The stages of one arm.

    Attributes:
        strict: whether what is not here is refused, and not planned by its name.
        stages: in their order.
        given: the stage that gives the model, words and text so far.
    """

    name: str
    recipe: AdaptationRecipe
    strict: bool
    stages: list[Stage] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        settings: Mapping[str, Any],
        *needs: str,
        gives: tuple[str, ...] = (),
        **own: Any,
    ) -> Stage:
        """Add a stage after those that it needs, and return it.

        What the stage gives is its own from then on.
        """
        stage = Stage(
            kind=kind,
            settings=settings,
            needs={name: self.given[name] for name in needs if name in self.given},
            arms=(self.name,),
            **own,
        )
        self.stages.append(stage)
        self.given |= dict.fromkeys(gives, stage.key)
        return stage


def plan_stages(recipe: AdaptationRecipe, *, strict: bool = True) -> tuple[Stage, ...]:
    """Plan all stages of all arms in an order in which they can be carried out.

    Stages that arms have in common are planned once.

    Args:
        strict: whether what is not here is refused; else it is planned by its name, and none of
            these stages can be carried out.

    Raises:
        UserError: a text, a model or rows are not there, or a package is missing.
    """
    found: dict[str, Stage] = {}
    for name, varied in recipe.arms().items():
        for stage in _stages(name, varied, strict):
            earlier = found.get(stage.key)
            arms = (*earlier.arms, name) if earlier else (name,)
            found[stage.key] = replace(stage, arms=tuple(dict.fromkeys(arms)))
    return tuple(sorted(found.values(), key=lambda stage: KINDS.index(stage.kind)))


def check_inputs(recipe: AdaptationRecipe, stage: Stage) -> None:
    """Refuse to go on with a stage whose key was made of files that have changed since.

    Raises:
        UserError: a text, rows or a model are others by now.
    """
    if stage.key not in {one.key for one in plan_stages(recipe)}:
        raise UserError(
            f"texts, rows or the model of {recipe.name} were changed before the stage {stage.kind} "
            "had read them; type the command again, which begins this stage anew"
        )


def sources(recipe: AdaptationRecipe) -> Iterator[tuple[str, int, Source]]:
    """Yield each text with its kind and its number within it."""
    for kind in ("domain", "general"):
        for number, source in enumerate(getattr(recipe.data, kind)):
            yield kind, number, source


def rules_of(recipe: AdaptationRecipe, kind: str) -> CleanSection:
    """Return the rules by which texts of a kind are cleaned."""
    rules = recipe.clean or KEEP_ALL
    return KEEP_ALL if kind == "general" and not rules.general else rules


def describe_base(recipe: AdaptationRecipe) -> list[str]:
    """Describe which held-out texts the base may have learned, as far as its recipe tells."""
    base = recipe.training()
    held = ((source, rules_of(recipe, kind) != KEEP_ALL) for kind, _, source in sources(recipe))
    return describe_learned(base.data, held, recipe.data.validation_fraction) if base else []


def _stages(name: str, recipe: AdaptationRecipe, strict: bool) -> list[Stage]:
    arm = PlanBuilder(name, recipe, strict)
    arm.add("base", _base(recipe, strict), gives=("model", "words"))
    if recipe.data.domain or recipe.data.general:
        arm.add("clean", _text(recipe, strict), gives=("text",))
    if recipe.clean is not None and recipe.clean.benchmarks:
        arm.add("contamination", _search(recipe, strict), "text")
    _ask(arm, "base")
    if recipe.vocabulary is not None:
        _vocabulary(arm)
        _ask(arm, "vocabulary")
    if recipe.pretrain is not None:
        _pretraining(arm, recipe.pretrain)
        _ask(arm, "pretrain")
    if recipe.sft is not None:
        settings = {**_plain("sft", recipe.sft), "rows": _rows(recipe.sft.sources, strict)}
        arm.add("tune", settings, "model", gives=("model",))
        _ask(arm, "tune")
    return arm.stages


def _vocabulary(arm: PlanBuilder) -> None:
    recipe = arm.recipe
    settings = _plain("vocabulary", recipe.vocabulary)
    if recipe.vocabulary is not None and recipe.vocabulary.jec_qa:
        from layerlab.tokenization.published_rates import questions

        def digest() -> str:
            return hashlib.blake2b("\0".join(questions()).encode()).hexdigest()[:32]

        # Says at once that they are not here; other ones give other rates.
        settings["questions"] = _identify("JEC-QA", digest, arm.strict)
    arm.add("vocabulary", settings, "text", "words", gives=("words",))
    starts = _plain("embedding", recipe.embedding) if recipe.embedding else {}
    arm.add("embedding", starts, "text", "model", "words", gives=("model",))


def _pretraining(arm: PlanBuilder, section: PretrainSection) -> None:
    settings = _plain("pretrain", section, without="seeds") | _weights(arm.recipe)
    before, first = arm.given["model"], ""
    for seed in section.seeds:
        arm.given["model"] = before
        own = {**settings, "seed": seed}
        added = arm.add("pretrain", own, "text", "model", gives=("model",), seed=seed)
        first = first or added.key
    arm.given["model"] = first  # what follows goes on from it


def _weights(recipe: AdaptationRecipe) -> dict[str, Any]:
    """Return the weights of the sources of a kind, where they are not all alike."""
    found = [source.weight for _, _, source in sources(recipe)]
    return {"weights": found} if set(found) - {1.0} else {}


def _ask(arm: PlanBuilder, after: str) -> None:
    section = arm.recipe.evaluate
    if section is None or after not in section.after:
        return
    if arm.strict:
        _check_engine(section)
    arm.add("evaluate", _plain("evaluate", section, without="after"), "text", "model", after=after)


def _check_engine(section: BenchmarkSection) -> None:
    """Check that lm-eval is installed, before hours of training."""
    missing = [one for one in ENGINES if section.suite and find_spec(one) is None]
    if missing:
        raise UserError(
            f"evaluate.suite needs {' and '.join(missing)}, which cannot be imported; "
            f'{describe_install(ENGINES[missing[0]])}, or write suite = ""'
        )


def list_absent(recipe: AdaptationRecipe) -> list[str]:
    """List what a recipe names and is not here: a line for models, for texts, and for rows."""
    found: dict[str, dict[str, None]] = {"model": {}, "texts": {}, "rows": {}}

    def check(what: str, name: str, look: Callable[[], object]) -> None:
        try:
            look()
        except UserError:
            found[what][name] = None

    for one in recipe.arms().values():
        name = one.base.model
        if name is not None and is_shape(name):
            found["model"][f"{name} (planned by the shape of that preset)"] = None
        elif name is not None:
            check("model", name, partial(check_found, [name]))
        for _, _, source in sources(one):
            check("texts", source.text, partial(check_source, source))
        for rows in one.sft.sources if one.sft else ():
            check("rows", rows.path, partial(find_text, rows.path))
    return [f"Not here: {what} {', '.join(names)}." for what, names in found.items() if names]


def is_shape(model: str) -> bool:
    """Return whether a name stands for the shape of a preset, of which there are no weights."""
    return model in presets() and not expand_home(model).is_dir()


def _identify(name: str, look: Callable[[], Any], strict: bool) -> Any:
    """Return what something is known by; its name where it is not here and need not be."""
    try:
        return look()
    except UserError:
        if strict:
            raise
        return f"{name}, which is not here"


def _identify_source(source: Source, strict: bool) -> Any:
    return _identify(source.text, lambda: open_source(source).identity, strict)


def _base(recipe: AdaptationRecipe, strict: bool) -> dict[str, Any]:
    training = recipe.training()
    if training is None:
        name = str(recipe.base.model)
        sources = list_sources(expand_home(name))
        own = {GIVEN: recipe.base.model, "files": _files(sources)} | _commit(name, strict)
        return own | _code_beside(sources[-1]) | _dtype(recipe)
    data = training.data
    found: dict[str, Any] = {
        "recipe": training.hash(),
        "texts": [_identify_source(source, strict) for source in data.sources],
    }
    # What the recipe names and does not hold; each only where there is one, so that no other base
    # has another key than in earlier versions.
    if data.eval_sources is not None:
        found["held out"] = [_identify_source(source, strict) for source in data.eval_sources]
    if data.trained_tokenizer is None and (path := expand_home(str(data.tokenizer))).exists():
        found["tokenizer"] = _content(path)
    if code := own_code(training):
        found[CODE] = code
    return found | _dtype(recipe)


def _commit(name: str, strict: bool) -> dict[str, Any]:
    """Return the commit of a model of the Hub, where others may follow under the same name."""
    if expand_home(name).is_dir() or name in builtin.NAMES or is_shape(name):
        return {}
    # Its folder there is called by the commit.
    return {"commit": _identify(name, lambda: find_folder(name, with_weights=False).name, strict)}


def _code_beside(folder: Path) -> dict[str, Any]:
    """Return the code that a model of ours runs and that does not lie in its folder."""
    if not folder.is_dir():
        return {}
    try:
        with quiet_libraries():
            found = configuration(folder)
        code = code_beside(found.parse_spec()) if isinstance(found, LabConfig) else {}
    except UserError:  # whoever loads the model says so
        return {}
    return {CODE: code} if code else {}


def _dtype(recipe: AdaptationRecipe) -> dict[str, str]:
    """Return the dtype of the weights, where it is not the usual one."""
    return {"dtype": recipe.base.dtype} if recipe.base.dtype != "float32" else {}


def _files(sources: Iterable[Path]) -> list[str]:
    """Return the content of the files of local folders.

    Nothing of a name, which names what does not change.
    """
    return [
        f"{path.relative_to(folder).as_posix()}:{fingerprint(path)}"
        for folder in sources
        for path in input_files(folder)
    ]


def _text(recipe: AdaptationRecipe, strict: bool) -> dict[str, Any]:
    if recipe.clean is not None and recipe.clean.near_duplicate_threshold:
        check_near()
    rules = _plain("clean", recipe.clean, without="benchmarks") if recipe.clean else None
    texts = [
        [
            *(kind, source.limit, _identify_source(source, strict)),
            *(["special tokens"] if source.special_tokens else []),
        ]
        for kind, _, source in sources(recipe)
    ]
    learned = describe_base(recipe)
    return {
        **({"learned": learned} if learned else {}),
        "rules": rules,
        "texts": texts,
        "validation": recipe.data.validation_fraction,
    }


def _search(recipe: AdaptationRecipe, strict: bool) -> dict[str, Any]:
    assert recipe.clean is not None
    sections = recipe.sft.sources if recipe.sft else ()
    rows = _rows(sections, strict)
    ignored = {one.name: sorted(one.ignore) for one in sections if one.ignore}
    return {
        **({"ignored": ignored} if ignored else {}),
        "benchmarks": [[name, _there(name)] for name in recipe.clean.benchmarks],
        "rows": rows,
        "base": _base(recipe, strict),
    }


def _there(name: str) -> list[str]:
    """Return the hashes of a file or folder; none if it does not exist.

    The stage itself tells of a missing file.
    """
    try:
        return _content(find_text(name))
    except UserError:
        return []


def _rows(given: tuple[RowsSection, ...], strict: bool) -> list[list[Any]]:
    """Return the content of the files of rows."""

    def content(path: str) -> Any:
        return _identify(path, lambda: _content(find_text(path)), strict)

    return [[one.name, one.limit, content(one.path)] for one in given]


def _content(root: Path) -> list[str]:
    """Return the hash of a file, or those in a folder, whose names say which of them are read."""
    if not root.is_dir():
        return [fingerprint(root)]
    inside = sorted(path for path in root.rglob("*") if path.is_file())
    return [f"{path.relative_to(root).as_posix()}:{fingerprint(path)}" for path in inside]


def _plain(name: str, section: Any, without: str = "") -> dict[str, Any]:
    """Return a section as JSON holds it, for the key of a stage.

    Defaults are left out, and names are those of 0.1, so that a new setting or name changes no key.
    """
    content: dict[str, Any] = section.model_dump(
        mode="json", exclude={without} if without else None, exclude_defaults=True
    )
    return settings_of_0_1(content, name)
