"""Checks equal terms: runs that differ in undeclared settings are refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import find, spans_tensor
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.paths import drop_folders
from layerlab.records.run import SHARED
from layerlab.records.settings import flatten, matches
from layerlab.validation import short_repr

Manifest = Mapping[str, Any]
Flat = Mapping[str, Any]

# What names a run or tells of its speed, and does not decide it. The sessions of a run are held
# against each other, and not against those of another.
_BESIDE = ("run", "arm", "data.notes", "sittings", SHARED)
# A smaller one leaves the tokens of an update, and what they are rounded to unless a format has one
# scale for all of it.
_MICRO = ("micro_batch", "train.micro_batch_size")
# What an arm is: it may differ between arms, and not inside of one.
_ARM = ("model", "match")
_SEED = ("train.seed",)
_RATE = ("train.learning_rate",)
_TIME = ("train.max_steps", "train.tokens", "train.num_train_epochs", "evaluate.eval_steps")
# What follows from a setting and needs no word of its own once that setting has one.
_CUT = ("data.digest", "data.train_tokens", "data.validation_tokens", "data.order")
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "train.batch_size": ("batch_tokens", "micro_batch"),
    "train.micro_batch_size": ("micro_batch",),
    "train.parametrization": ("train.mup_base_width", "train.mup_base_head_width"),
    "train.mup_base_width": ("train.mup_base_head_width",),
    "data.block_size": ("batch_tokens", "data.digest", "data.order", "data.evaluation"),
    "data.tokenizer": (*_CUT, "data.evaluation"),
    "data.vocab_size": (*_CUT, "data.evaluation"),
    "data.sources": (*_CUT, "data.evaluation", "data.eval_sources"),
    "data.validation_fraction": (*_CUT, "data.evaluation", "data.validation_bytes"),
    "data.document_masking": ("data.digest",),
    "evaluate.max_eval_blocks": ("data.evaluation",),
}
# What a batch brings along only while the runs see as many tokens: the updates, and what is
# counted in them.
_LENGTH = ("train.max_steps", "evaluate.eval_steps")
_WHY = {
    "train.batch_size": (
        "another batch is another number of updates and another noise of the gradient"
    ),
    "train.micro_batch_size": (
        "the format of emulate.format has one scale for all that a forward pass reads"
    ),
    "micro_batch": "the format of emulate.format has one scale for all that a forward pass reads",
    "train": "another optimization ends elsewhere, whatever the block",
    "data": "losses on other text, or on text in another order, are no paired losses",
    "evaluate": "a loss is compared on the same blocks only",
    "control": "a penalty or a clip changes the training as much as a block does",
    "emulate": "emulated rounding changes the training as much as a block does",
    "machine": "another machine rounds elsewhere, and its speed is not comparable",
    "versions": "another version may compute elsewhere, and its speed is not comparable",
    "model": "the runs of one arm must train one model",
}
_FEW = 4


@dataclass(frozen=True, kw_only=True)
class VariedSettings:
    """The settings that a comparison declares to vary.

    Attributes:
        differ: settings by their paths, as patterns: `train.batch_size`, `machine.*`.
        rates: whether learning rates are swept.
        time: whether arms are matched by time, and so by different numbers of updates.
    """

    differ: tuple[str, ...] = ()
    rates: bool = False
    time: bool = False

    @classmethod
    def of(cls, section: CompareSection) -> "VariedSettings":
        """Return the settings that a compare section declares to vary."""
        return cls(
            differ=section.allowed_differences,
            rates=bool(section.learning_rates),
            time=section.match == "time",
        )


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting in which two runs differ.

    Attributes:
        path: of the setting.
        runs: two runs by name.
        values: theirs.
        within: whether both are runs of one arm.
    """

    path: str
    runs: tuple[str, str]
    values: tuple[Any, Any]
    within: bool

    def __str__(self) -> str:
        (one, other), (left, right) = self.runs, self.values
        return f"{self.path} is {_describe(left)} in {one} and {_describe(right)} in {other}"


def check_equal_terms(
    manifests: Sequence[Manifest], varied: VariedSettings
) -> list[SettingDifference]:
    """Refuse runs that differ in anything that was not declared.

    Returns:
        What they differ in as declared, one for each setting.

    Raises:
        UserError: they differ in more; it names where, why that matters, and what to type.
    """
    flat = [settings(one) for one in manifests]
    found = [
        *_contrasts(manifests, flat),
        *_orders(manifests, flat),
        *(one for manifest in manifests for one in _mix(manifest)),
    ]
    scaled = any(_shares_scale(one.get("emulate.format")) for one in flat)
    beside = _BESIDE if scaled else (*_BESIDE, *_MICRO)
    differ = [one for one in found if not _is_allowed(one, varied, beside)]
    equal_tokens = _equal_tokens(manifests)
    roots = [
        one
        for one in differ
        if not matches(one.path, varied.differ)
        and not _is_implied(one.path, varied.differ, equal_tokens)
    ]
    if roots:
        raise UserError(_refusal(_first(roots, equal_tokens)))
    declared = [one for one in differ if matches(one.path, varied.differ)]
    return list({one.path: one for one in declared}.values())


def notes(manifests: Sequence[Manifest]) -> list[str]:
    """Return remarks on allowed differences, such as micro-batches of equal batches."""
    sizes: dict[Any, set[int]] = {}
    for one in manifests:
        if one.get("micro_batch"):
            sizes.setdefault(one.get("batch_tokens"), set()).add(one["micro_batch"])
    # Where the batch itself differs, another micro-batch follows from it.
    return [
        f"micro-batches of {', '.join(map(str, sorted(several)))} sequences were used; the tokens "
        "of an update are the same"
        for several in sizes.values()
        if len(several) > 1
    ]


def settings(manifest: Manifest) -> dict[str, Any]:
    """Return the settings of a manifest, by the paths of the recipe where it has them."""
    found = dict(flatten(manifest))
    return {path.removeprefix("recipe."): value for path, value in found.items()}


def _contrasts(manifests: Sequence[Manifest], flat: Sequence[Flat]) -> Iterator[SettingDifference]:
    """Yield differences: each arm's first run to the first of all, its others to its first.

    What may differ inside of an arm may differ between arms too, so that nothing is missed. Where
    two have one text, it does not count where that lies.
    """
    leads: dict[str, int] = {}
    bare = [settings({**one, "recipe": drop_folders(one.get("recipe", {}))}) for one in manifests]
    for index, manifest in enumerate(manifests):
        lead = leads.setdefault(str(manifest.get("arm")), index)
        within = lead != index
        pair = lead if within else 0, index
        texts = {flat[one].get("data.digest") for one in pair}
        yield from _between(manifests, bare if len(texts) == 1 else flat, pair, within)


def _between(
    manifests: Sequence[Manifest],
    flat: Sequence[Flat],
    pair: tuple[int, int],
    within: bool,
) -> Iterator[SettingDifference]:
    one, other = pair
    for path in sorted(flat[one].keys() | flat[other].keys()):
        values = flat[one].get(path), flat[other].get(path)
        if values[0] != values[1] and path != "data.order":
            runs = str(manifests[one].get("run")), str(manifests[other].get("run"))
            yield SettingDifference(path=path, runs=runs, values=values, within=within)


def _orders(manifests: Sequence[Manifest], flat: Sequence[Flat]) -> Iterator[SettingDifference]:
    """Yield differences in the order of the text that the seed does not explain."""
    leads: dict[Any, tuple[str, Any]] = {}
    for manifest, own in zip(manifests, flat, strict=True):
        run, order = str(manifest.get("run")), own.get("data.order")
        name, expected = leads.setdefault(own.get("train.seed"), (run, order))
        if order != expected:
            yield SettingDifference(
                path="data.order", runs=(name, run), values=(expected, order), within=False
            )


def _mix(manifest: Manifest) -> Iterator[SettingDifference]:
    """Return the settings that a run was resumed with and not begun with."""
    first, *later = manifest.get("sittings") or [{}]
    run, begun = str(manifest.get("run")), settings(first)
    for session in later:
        own = settings(session)
        for path in sorted((begun.keys() | own.keys()) - {"update"}):
            values = begun.get(path), own.get(path)
            if values[0] != values[1]:
                runs = f"{run} at first", f"{run} from update {session['update']}"
                yield SettingDifference(path=path, runs=runs, values=values, within=True)


def _shares_scale(format: Any) -> bool:
    """Return whether sequences of a forward pass decide what others are rounded to."""
    try:
        return format is not None and spans_tensor(find(format))
    except UserError:  # the name of no format: held against that of another run like any setting
        return False


def _is_allowed(contrast: SettingDifference, varied: VariedSettings, beside: Sequence[str]) -> bool:
    always = [*beside, *_SEED]
    always += _RATE if varied.rates else ()
    always += _TIME if varied.time and not contrast.within else ()
    always += () if contrast.within else _ARM
    return matches(contrast.path, always)


def _is_implied(path: str, declared: Sequence[str], equal_tokens: bool) -> bool:
    """Return whether a difference follows from one that has been declared."""
    if equal_tokens and path in _LENGTH and matches("train.batch_size", declared):
        return True
    return any(
        path in follows and _is_covered(cause, declared) for cause, follows in _FOLLOWS.items()
    )


def _is_covered(cause: str, declared: Sequence[str]) -> bool:
    """Return whether a setting is declared; of a table such as `data.sources` a part suffices."""
    return matches(cause, declared) or any(one.startswith(f"{cause}.") for one in declared)


def _equal_tokens(manifests: Sequence[Manifest]) -> bool:
    totals = set()
    for manifest in manifests:
        updates = manifest.get("recipe", {}).get("train", {}).get("max_steps")
        totals.add((updates or 0) * (manifest.get("batch_tokens") or 0))
    return len(totals) == 1


def _first(found: Sequence[SettingDifference], equal_tokens: bool) -> list[SettingDifference]:
    """Return one difference a setting, causes before their consequences."""
    single = list({one.path: one for one in reversed(found)}.values())[::-1]
    paths = [one.path for one in single]
    causes = [
        one
        for one in single
        if not _is_implied(one.path, [path for path in paths if path != one.path], equal_tokens)
    ]
    return sorted(causes or single, key=lambda one: (_rank(one.path), one.path))


def _rank(path: str) -> int:
    order = ("model", "train", "data", "batch_tokens", "evaluate", "control", "emulate")
    head = path.split(".")[0]
    return order.index(head) if head in order else len(order)


def _refusal(roots: Sequence[SettingDifference]) -> str:
    named = "; ".join(map(str, roots[:_FEW]))
    more = f"; and {len(roots) - _FEW} more" if len(roots) > _FEW else ""
    why = next((reason for key, reason in _WHY.items() if matches(roots[0].path, [key])), None)
    reason = why or "what else differs may be what makes the difference"
    if any(one.within and one.path.startswith("model.") for one in roots):
        return f"runs differ: {named}{more}: {reason}; run that arm anew in a folder of its own"
    paths = ", ".join(f'"{one.path}"' for one in roots)
    return (
        f"runs differ in what was not declared: {named}{more}: {reason}; make them equal, or type "
        f"compare.allowed_differences = [{paths}]"
    )


def _describe(value: Any) -> str:
    return "not set" if value is None else short_repr(value)
