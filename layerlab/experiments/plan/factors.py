"""Lists how an arm differs from its baseline: slots, options, sizes, parameters, FLOPs.

An experiment that changes one factor tells what that factor does; where several change at once, a
difference is that of all of them together, and no run can say whose it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from layerlab.blocks.part import SLOTS, Slot
from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Choice, Spec, StackSpec
from layerlab.errors import UserError
from layerlab.model.design import Design
from layerlab.model.option import options_of
from layerlab.recipes.arms import arms
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.json_values import Json, Record
from layerlab.records.run import RunRecord
from layerlab.training.run_spec import RunSpec, count_costs, design_model

# Norms of the stack: as those of the blocks they are no choice of their own.
_EDGES = ("embedding_norm", "final_norm")


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One thing in which two models differ.

    Attributes:
        place: a slot, `stack`, or `size`.
        option: of the place; None where the part in a slot is another one.
        arm: its value in the arm; None where the part there has no such option.
        against: its value in the baseline.
    """

    place: str
    option: str | None
    arm: Any
    against: Any


@dataclass(frozen=True, kw_only=True)
class ArmModel:
    """A model of a comparison.

    Attributes:
        design: its slots and sizes.
        parameters: all of them.
        flops: of one token's forward pass.
    """

    design: Design
    parameters: float | None
    flops: float | None

    @classmethod
    def from_recipe(cls, recipe: TrainingRecipe) -> "ArmModel":
        """Return the model of a resolved recipe, counted by formula."""
        cost = count_costs(recipe)
        return cls(design=design_model(recipe), parameters=cost.parameters, flops=cost.forward)

    @classmethod
    def from_record(cls, record: RunRecord) -> "ArmModel | None":
        """Return the model of a run as its manifest has it.

        None where it names what is not there now.
        """
        try:
            design = design_model(make_recipe(record.manifest["recipe"]))
        except UserError:
            return None
        parameters, flops = record.count("parameters"), record.count("forward_flops")
        return cls(design=design, parameters=parameters, flops=flops)


def planned_factors(recipe: TrainingRecipe, runs: Sequence[RunSpec]) -> list[Json]:
    """Return how each planned arm will differ from its baseline.

    Empty where nothing is compared.
    """
    if recipe.compare is None:
        return []
    baselines = {str(arm.name): str(arm.against) for arm in arms(recipe.compare, recipe)}
    models = {
        name: ArmModel.from_recipe(one)
        for name, one in {run.arm: run.recipe for run in runs}.items()
    }
    differs = departures(models, baselines)
    return [
        {"arm": name, "against": baseline, "differs": differs[name]}
        for name, baseline in baselines.items()
    ]


def begun_models(records: Iterable[RunRecord]) -> dict[str, ArmModel | None]:
    """Return the model of each arm that has begun."""
    first: dict[str, RunRecord] = {}
    for record in records:
        first.setdefault(record.arm, record)
    return {arm: ArmModel.from_record(record) for arm, record in first.items()}


def departures(
    models: Mapping[str, ArmModel | None], baselines: Mapping[str, str]
) -> dict[str, Json | None]:
    """Return how each arm differs from its baseline, as plain values.

    Args:
        models: by arm.
        baselines: the baseline of each arm.

    Returns:
        By arm; None for a baseline, and where one of the two models is not known.
    """
    return {name: _departure(models, name, baseline) for name, baseline in baselines.items()}


def factors(own: Design, base: Design) -> list[Factor]:
    """Return slots, stack and sizes in which two designs differ, in this order.

    Example:
        >>> from layerlab.model.design import design
        >>> [one] = factors(design("gpt1-pre-norm"), design("gpt1"))
        >>> one.place, one.option, one.arm, one.against
        ('norm', 'placement', 'pre', 'post')
    """
    return [
        *(one for slot in SLOTS for one in _slot(own.spec, base.spec, slot)),
        *_fields("stack", StackSpec, own.spec.stack, base.spec.stack),
        *_fields("size", Shape, own.shape, base.shape),
    ]


def warn_of_many_slots(rows: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence on the arms that change more than one slot at once.

    Args:
        rows: of a comparison: `arm` and `differs` of each.
    """
    found = [(row["arm"], where) for row in rows if len(where := places(row.get("differs"))) > 1]
    if found:
        by_arm = ", ".join(f"{arm} ({', '.join(where)})" for arm, where in found)
        yield (
            "more than one part differs from the baseline's, and no verdict can say which of them "
            f"counts: {by_arm}"
        )


def together(differs: Mapping[str, Any] | None) -> str:
    """Return a caveat for the verdict if more than one slot differs, else an empty text.

    Example:
        >>> together({"slots": ["norm", "ffn"], "stack": ["position"]})
        'the two differ in norm, ffn, stack at once, so this is a verdict on all of that together'
        >>> together({"slots": ["norm"], "stack": []})
        ''
    """
    where = places(differs)
    if len(where) < 2:
        return ""
    return (
        f"the two differ in {', '.join(where)} at once, so this is a verdict on all of that "
        "together"
    )


def places(differs: Mapping[str, Any] | None) -> list[str]:
    """Return the slots in which an arm differs from its baseline, and the stack where it does."""
    if not differs:
        return []
    return [*differs["slots"], *(["stack"] if differs["stack"] else [])]


def _departure(models: Mapping[str, ArmModel | None], name: str, baseline: str) -> Json | None:
    own, base = models.get(name), models.get(baseline)
    if name == baseline or own is None or base is None:
        return None
    found = factors(own.design, base.design)
    slots = [slot for slot in SLOTS if any(one.place == slot for one in found)]
    follows = _following(own.design.spec, base.design.spec)
    inside = [str(one.option) for one in found if one.place == "stack"]
    return {
        "slots": slots,
        "stack": [name for name in inside if name not in follows],
        "factors": [asdict(one) for one in found],
        "parameters": _count(own.parameters, base.parameters),
        "flops": _count(own.flops, base.flops),
    }


def _slot(own: Spec, base: Spec, slot: Slot) -> Iterator[Factor]:
    one, other = getattr(own.block, slot), getattr(base.block, slot)
    if one.name != other.name:
        yield Factor(place=slot, option=None, arm=one.name, against=other.name)
        given, wanted = one.given(), other.given()
    else:
        # What is set to its default is no difference.
        given, wanted = _fill(own, slot), _fill(base, slot)
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            yield Factor(place=slot, option=name, arm=given.get(name), against=wanted.get(name))
    if slot == "norm" and own.block.placement != base.block.placement:
        yield Factor(
            place=slot,
            option="placement",
            arm=own.block.placement,
            against=base.block.placement,
        )


def _fill(spec: Spec, slot: Slot) -> dict[str, Any]:
    defaults = {name: option.default for name, option in options_of(spec, slot).items()}
    return {**defaults, **getattr(spec.block, slot).given()}


def _fields(place: str, kind: type[Any], own: Any, base: Any) -> Iterator[Factor]:
    for name in (one.name for one in fields(kind)):
        values = _plain(getattr(own, name)), _plain(getattr(base, name))
        if values[0] != values[1]:
            yield Factor(place=place, option=name, arm=values[0], against=values[1])


def _plain(value: Any) -> Any:
    """Return a part in words: its name, with the options that are set."""
    if not isinstance(value, Choice):
        return value
    options = ", ".join(f"{name}={one}" for name, one in value.options)
    return f"{value.name} ({options})" if options else value.name


def _following(own: Spec, base: Spec) -> set[str]:
    """Return stack norms that differ only because the blocks' norms do."""
    return {
        name
        for name in _EDGES
        if getattr(own.stack, name) == own.block.norm
        and getattr(base.stack, name) == base.block.norm
    }


def _count(own: float | None, base: float | None) -> Json | None:
    if own is None or base is None:
        return None
    percent = 100 * (own - base) / base if base else None
    return {"arm": own, "against": base, "difference": own - base, "percent": percent}
