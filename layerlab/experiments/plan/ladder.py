"""The sizes of a ladder: each a comparison of its own, with models, tokens and rates written out.

A size is met by the baseline's width and depth together. Heads keep their width, so the width goes
in whole heads (in whole groups of them, where queries share keys), and what stands beside it in
numbers (feed-forward, heads of keys) goes in proportion. Of the shapes within a tenth of the size,
the one whose ratio of width to depth is nearest to the recipe's is taken.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from heapq import merge
from typing import Any

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec
from layerlab.console.units import amount
from layerlab.corpus.extent import CorpusSize
from layerlab.errors import UserError
from layerlab.model.cost.cost import account
from layerlab.model.design import Design
from layerlab.model.size import LARGEST, MOST
from layerlab.recipes.arms import arms, sides
from layerlab.recipes.ladder_section import ALIKE, LadderSection
from layerlab.recipes.training import LENGTHS, TrainingRecipe
from layerlab.training.run_spec import RunSpec, design_model

MOST_TOKENS = 1e15  # of a run: as `train.tokens` takes them
# How far a shape may be from its size, and its ratio of width to depth from the recipe's.
NEAR, PROPORTION = 0.1, 3.0
_CHOSEN = (
    *("model.preset", "model.width", "model.layers", "model.heads", "model.kv_heads"),
    *("model.head_width", "model.inner", *(f"train.{name}" for name in LENGTHS)),
    *("train.warmup_steps", "evaluate.eval_steps"),
)


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One size of a ladder.

    Attributes:
        wanted: parameters that were asked for.
        parameters: that the baseline has.
        tokens: that a run of the baseline trains on.
        recipe: the comparison at this size, which is one like any other.
        runs: of it.
    """

    wanted: float
    parameters: int
    tokens: int
    recipe: TrainingRecipe
    runs: tuple[RunSpec, ...] = ()


def plan_rungs(recipe: TrainingRecipe, extent: CorpusSize) -> list[Rung]:
    """Return the sizes of a ladder, the smallest first, as comparisons of their own.

    Args:
        extent: of the baseline's corpus.

    Raises:
        UserError: no shape has a size, an arm has a setting of its own that goes with the size, or
            tokens per parameter differ and this is not declared.
    """
    ladder, section = recipe.ladder, recipe.compare
    if ladder is None or section is None:
        return []
    chosen = (*_CHOSEN, *(["train.learning_rate"] if ladder.learning_rates else []))
    for arm, whole in zip(arms(section, recipe), sides(recipe).values(), strict=True):
        # A share of the updates is one at every size.
        free = ["train.warmup_steps"] if whole.train.warmup_steps < 1 else []
        own = next((path for path in arm.set if path in chosen and path not in free), None)
        if own is not None:
            raise UserError(
                f"the arm {arm.name!r} sets {own}, which a ladder chooses for all arms of a size; "
                "take it out of the arm, or leave [ladder] out"
            )
    base = baseline_of(recipe)
    base = base.change({"model.vocab": base.model.vocab or extent.vocab})
    design = design_model(base)
    full_size = account(design.spec, design.shape).parameters
    length = _length(base, design.shape)
    sizes = _sizes(ladder, full_size)
    found = [_fit(base, design, size, ladder) for size in sizes]
    _check_apart(sizes, [parameters for _, parameters in found])
    _check_beyond(ladder, found[-1][1])
    tokens = [
        ladder.tokens[index]
        if ladder.tokens
        else (ladder.tokens_per_parameter or length / full_size) * parameters
        for index, (_, parameters) in enumerate(found)
    ]
    _check_lengths(tokens, [parameters for _, parameters in found])
    _check_equal(ladder, tokens, [parameters for _, parameters in found])
    return [
        Rung(
            wanted=size,
            parameters=parameters,
            tokens=round(wanted),
            recipe=_recipe(
                recipe,
                shape,
                wanted,
                wanted / length,
                _rates(ladder, index)
                | {"train.mup_base_head_width": base.train.mup_base_head_width},
            ),
        )
        for index, (size, (shape, parameters), wanted) in enumerate(
            zip(sizes, found, tokens, strict=True)
        )
    ]


@contextmanager
def name_size(size: Rung) -> Iterator[None]:
    """Say at which size an error is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"at {amount(size.parameters)} parameters: {error}") from None


def baseline_of(recipe: TrainingRecipe) -> TrainingRecipe:
    """Return the recipe of the arm that others are judged against.

    Under muP with the base of its heads: of a ladder they are as wide at every size.
    """
    found, section = sides(recipe), recipe.compare
    named = None if section is None else section.baseline
    base = found[named or next(iter(found))]
    if base.train.parametrization == "standard" or base.train.mup_base_head_width is not None:
        return base
    plain = base.change({"train.parametrization": "standard", "train.mup_base_width": None})
    return base.change({"train.mup_base_head_width": design_model(plain).shape.head_width})


def _sizes(ladder: LadderSection, parameters: int) -> list[float]:
    """Return the parameters that are asked for; without a list, they end at the recipe's own.

    Raises:
        UserError: the smallest is below one.
    """
    if ladder.sizes is not None:
        return list(ladder.sizes)
    most = 1 + int(math.log(parameters) / math.log(ladder.ratio))
    if ladder.steps > most:
        raise UserError(
            f"ladder.count is {ladder.steps} with a ratio of {ladder.ratio:g}, and the smallest "
            f"size has less than one of {amount(parameters)} parameters; expected {most} sizes at "
            "most: write a smaller ladder.count or ratio"
        )
    return [parameters / ladder.ratio**back for back in reversed(range(ladder.steps))]


def _length(base: TrainingRecipe, shape: Shape) -> float:
    """Return the tokens that a run of the recipe's own length trains on."""
    train, block = base.train, base.data.block_size or shape.context
    if train.tokens is not None:
        return float(train.tokens)
    return float((train.max_steps or 0) * train.batch_size * block)


def _fit(
    base: TrainingRecipe, design: Design, size: float, ladder: LadderSection
) -> tuple[dict[str, int], int]:
    """Return the sizes of a model with about so many parameters, and how many it has.

    Raises:
        UserError: none is near enough, or it is deeper than any model.
    """
    own = design.shape
    aspect = own.width / own.layers
    about = NEAR if ladder.sizes else max(NEAR, ladder.ratio**0.25 - 1)
    group = math.lcm(*(own.heads // math.gcd(own.heads, one) for one in (own.kv_heads, own.width)))
    heads = own.heads * min(
        MOST.get(name, LARGEST) / one
        for name, one in _scale(design, own.heads).items()
        if name != "head_width"
    )

    @cache
    def candidate(number: int) -> _Candidate:
        return _candidate(base, design, group * number, size)

    def odd(one: _Candidate) -> float:
        return abs(math.log(one.aspect / aspect))

    numbers = range(1, max(1, int(heads / group)) + 1)
    middle = bisect_left(numbers, aspect, key=lambda number: candidate(number).aspect)
    narrower = _until(
        lambda one: one.shape.layers == one.depths[-1] and one.parameters < (1 - about) * size,
        map(candidate, reversed(numbers[:middle])),
    )
    wider = _until(
        lambda one: one.shape.layers == one.depths[0] and one.parameters > (1 + about) * size,
        map(candidate, numbers[middle:]),
    )
    inside, outside = list[_Candidate](), list[_Candidate]()
    # The more heads, the fewer layers: from the recipe's proportion on, either way, it gets worse,
    # but where the proportion itself bounds the layers.
    for one in merge(narrower, wider, key=odd):
        if one.shape.layers > MOST["layers"]:
            raise UserError(
                f"{amount(size)} parameters in this recipe's proportion are a width of "
                f"{one.shape.width} and {one.shape.layers} layers; expected at most "
                f"{MOST['layers']}: write smaller ladder.sizes, or in [model] a larger width for "
                "its layers"
            )
        fits = odd(one) <= math.log(PROPORTION)
        (inside if fits else outside).append(one)
        if fits and one.is_near(size, about) and one.is_free:
            break
    near = [one for one in inside if one.is_near(size, about)]
    if not near:
        raise UserError(_unmet(inside or outside, size, about, ladder))
    best = min(near, key=lambda one: (odd(one), one.shape.width))
    return {**best.sizes, "layers": best.shape.layers}, best.parameters


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A shape with about the parameters of a size, as far as its depth may go.

    Attributes:
        sizes: what a recipe sets for it, beside the layers.
        depths: in about the recipe's proportion.
    """

    sizes: Mapping[str, int]
    depths: range
    spec: Spec
    shape: Shape

    @property
    def aspect(self) -> float:
        """The ratio of width to depth."""
        return self.shape.width / self.shape.layers

    @property
    def is_free(self) -> bool:
        """Return whether the size alone says the depth: it might be smaller, and larger."""
        return self.depths[0] < self.shape.layers < self.depths[-1]

    def is_near(self, size: float, about: float) -> bool:
        """Return whether the parameters are those of a size, but for a share of them."""
        return abs(self.parameters / size - 1) <= about

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, for which every layer is accounted."""
        return account(self.spec, self.shape).parameters


def _candidate(base: TrainingRecipe, design: Design, heads: int, size: float) -> _Candidate:
    """Return the shape with so many heads whose depth comes nearest to a size."""
    own, sizes = design.shape, _scale(design, heads)
    there = design_model(base.change({f"model.{name}": one for name, one in sizes.items()}))
    ideal = sizes["width"] * own.layers / own.width
    depths = range(max(1, math.ceil(ideal / PROPORTION)), max(1, int(ideal * PROPORTION)) + 1)
    one, two = (account(there.spec, replace(there.shape, layers=n)).parameters for n in (1, 2))
    layers = min(max(depths[0], round(1 + (size - one) / (two - one))), depths[-1])
    return _Candidate(
        sizes=sizes, depths=depths, spec=there.spec, shape=replace(there.shape, layers=layers)
    )


def _until(
    last: Callable[[_Candidate], bool], candidates: Iterable[_Candidate]
) -> Iterator[_Candidate]:
    """Yield candidates until one is the last, which is among them."""
    for one in candidates:
        yield one
        if last(one):
            return


def _scale(design: Design, heads: int) -> dict[str, int]:
    """Return the sizes that go with the number of heads, as far as a recipe or preset gives them.

    A feed-forward that is given as a multiple of the width stays one.
    """
    own, asked = design.shape, design.asked
    found = {"heads": heads, "width": own.width * heads // own.heads}
    if "kv_heads" in asked:
        found["kv_heads"] = own.kv_heads * heads // own.heads
    if "head_width" in asked:
        found["head_width"] = own.head_width
    if isinstance(asked.get("inner"), int):
        found["inner"] = max(1, round(own.inner * heads / own.heads))
    return found


def _unmet(every: Sequence[_Candidate], size: float, about: float, ladder: LadderSection) -> str:
    by_size = sorted(every, key=lambda one: one.parameters)
    below = [one for one in by_size if one.parameters < size][-1:]
    above = [one for one in by_size if one.parameters > size][:1]
    nearest_sizes = " and ".join(
        f"{amount(one.parameters)} (width {one.shape.width}, layers {one.shape.layers})"
        for one in (*below, *above)
    )
    nearest = min(by_size, key=lambda one: abs(math.log(one.parameters / size))).parameters
    way = f"{nearest} among ladder.sizes" if ladder.sizes else "a smaller ladder.count or ratio"
    return (
        f"no width and depth of this recipe's proportion has {amount(size)} parameters within "
        f"{100 * about:.0f} %; the nearest are {nearest_sizes}: write {way}, or narrower heads in "
        "[model]"
    )


def _check_apart(sizes: Sequence[float], found: Sequence[int]) -> None:
    if list(found) != sorted(set(found)):
        raise UserError(
            f"the sizes {', '.join(map(amount, sizes))} give models of "
            f"{', '.join(map(amount, found))} parameters; expected each larger than the one "
            "before: write ladder.sizes farther apart"
        )


def _check_beyond(ladder: LadderSection, largest: int) -> None:
    inside = next((size for size in ladder.beyond if size <= largest), None)
    if inside is not None:
        raise UserError(
            f"ladder.beyond has {amount(inside)}, which is not beyond the largest size of "
            f"{amount(largest)}; expected larger sizes: write beyond = [{2 * largest}]"
        )


def _check_lengths(tokens: Sequence[float], found: Sequence[int]) -> None:
    for one, parameters in zip(tokens, found, strict=True):
        if not 1 <= one <= MOST_TOKENS:
            raise UserError(
                f"{amount(parameters)} parameters with {one / parameters:g} tokens each are "
                f"{one:.3g} tokens a run; expected 1 to {MOST_TOKENS:g}: write "
                "ladder.tokens_per_parameter = 20"
            )


def _check_equal(ladder: LadderSection, tokens: Sequence[float], found: Sequence[int]) -> None:
    """Refuse tokens per parameter that differ and are not declared to."""
    each = [one / parameters for one, parameters in zip(tokens, found, strict=True)]
    if max(each) > ALIKE * ALIKE * min(each) and not ladder.unequal_tokens:
        raise UserError(
            f"the sizes have {', '.join(f'{one:.3g}' for one in each)} tokens per parameter, so "
            "that length changes with size; write ladder.tokens_per_parameter = "
            f"{each[-1]:.3g}, or declare it: ladder.unequal_tokens = true"
        )


def _rates(ladder: LadderSection, index: int) -> dict[str, Any]:
    """Return the learning rates of a size as settings: one, or several that are swept."""
    if not ladder.learning_rates:
        return {}
    given = ladder.learning_rates[index]
    if isinstance(given, tuple):
        return {"compare.learning_rates": list(given)}
    return {"compare.learning_rates": [], "train.learning_rate": given}


def _recipe(
    recipe: TrainingRecipe,
    sizes: Mapping[str, int],
    tokens: float,
    share: float,
    others: Mapping[str, Any],
) -> TrainingRecipe:
    """Return the comparison at a size; what is given in updates keeps its share of the run."""
    train, evaluate = recipe.train, recipe.evaluate
    found = {f"model.{name}": size for name, size in sizes.items()}
    if evaluate.eval_steps is not None:
        found["evaluate.eval_steps"] = max(1, round(evaluate.eval_steps * share))
    if train.warmup_steps >= 1:
        found["train.warmup_steps"] = max(1, round(train.warmup_steps * share))
    lengths = {"train.tokens": round(tokens)}
    return recipe.change({**found, **lengths, **others, "ladder": None})
