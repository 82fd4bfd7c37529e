"""The section of a ladder: a comparison at several sizes, so that a verdict says where it holds."""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from layerlab.recipes.training_sections import Count, Few, Positive, Section
from layerlab.validation import short_repr

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgbt]?)", re.IGNORECASE)
# Tokens per parameter that differ by less are one number, rounded to whole updates.
ALIKE = 1.1
FEWEST_SEEDS = 3


def parameters_of(given: Any) -> Any:
    """Return a number of parameters as typed: 10e6, or "10M" with a prefix.

    Raises:
        ValueError: a text that is none.

    Example:
        >>> parameters_of("1.5 M"), parameters_of(3e6)
        (1500000.0, 3000000.0)
    """
    if not isinstance(given, str):
        return given
    found = _SIZE.fullmatch(given.strip())
    if found is None:
        raise ValueError(
            f"a size of the ladder is {short_repr(given)}; expected a number of parameters: "
            'write sizes = ["1M", "3M", "10M"]'
        )
    return float(found[1]) * _PREFIXES[found[2].lower()]


ModelSize = Annotated[
    float,
    Field(gt=0, le=1e15),
    BeforeValidator(parameters_of),
]


class LadderSection(Section):
    """The sizes that a comparison is made at, the smallest first.

    Attributes:
        sizes: parameters of the baseline, as `10e6` or `"10M"`; embedding and head count. Width and
            depth keep the recipe's proportion, as near as whole heads and layers allow.
        count: in place of sizes: so many, of which the last is the recipe's own.
        ratio: of one size to that before, with `count`.
        tokens_per_parameter: that every run trains on, per parameter of the baseline; the
            recipe's own where it is left out.
        tokens: in its place: of each size.
        unequal_tokens: declares that sizes differ in their tokens per parameter, so that length
            changes with size.
        learning_rates: of each size: its rate, or those that are swept there. Where they are left
            out, every size sweeps `compare.learning_rates`, or has the recipe's one rate.
        beyond: larger sizes that the trend is asked about; one step further where they are left
            out.
    """

    sizes: Annotated[tuple[ModelSize, ...] | None, Field(examples=[["1M", "3M", "10M"]])] = None
    count: Annotated[Few | None, Field(examples=[3])] = None
    ratio: Annotated[float, Field(gt=1, le=1000)] = 3.0
    tokens_per_parameter: Annotated[Positive | None, Field(examples=[20])] = None
    tokens: Annotated[tuple[Count, ...], Field(examples=[[20_000_000, 60_000_000]])] = ()
    unequal_tokens: bool = False
    learning_rates: Annotated[
        tuple[Positive | Annotated[tuple[Positive, ...], Field(min_length=1)], ...],
        Field(examples=[[3e-3, 2e-3, 1e-3]]),
    ] = ()
    beyond: Annotated[tuple[ModelSize, ...], Field(examples=[["100M"]])] = ()

    @model_validator(mode="after")
    def _check_sizes(self) -> "LadderSection":
        """Check that there are several sizes, in rising order."""
        if bool(self.sizes) == (self.count is not None):
            raise ValueError(
                f"ladder gives {'sizes and count' if self.sizes else 'neither sizes nor count'}; "
                'expected one of the two: write sizes = ["1M", "3M", "10M"]'
            )
        if self.steps < 2:
            raise ValueError(
                f"ladder has {self.steps} size, and one size tells of no other; expected two or "
                'more, better three: write sizes = ["1M", "3M", "10M"], or type --ladder 3'
            )
        given = list(self.sizes or ())
        if given != sorted(set(given)):
            raise ValueError(
                f"ladder.sizes is {_join_sizes(given)}, which does not rise; expected each larger "
                f"than the one before: write sizes = {_join_sizes(sorted(set(given)))}"
            )
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> "LadderSection":
        """Check that sizes have as many tokens per parameter, or that it is declared."""
        if self.tokens and self.tokens_per_parameter is not None:
            raise ValueError(
                "ladder gives tokens and tokens_per_parameter; expected one of the two: "
                "write tokens_per_parameter = 20"
            )
        for name in ("tokens", "learning_rates"):
            given = getattr(self, name)
            if given and len(given) != self.steps:
                each = [*given, *[given[-1]] * self.steps][: self.steps]
                raise ValueError(
                    f"ladder.{name} has {len(given)} for {self.steps} sizes; expected one for "
                    f"each: write {name} = {json.dumps(each)}"
                )
        if not (self.tokens and self.sizes) or self.unequal_tokens:
            return self
        each = [tokens / size for tokens, size in zip(self.tokens, self.sizes, strict=True)]
        if max(each) > ALIKE * min(each):
            raise ValueError(
                f"ladder.tokens gives {', '.join(f'{one:.3g}' for one in each)} tokens per "
                "parameter, so that length changes with size; write tokens_per_parameter = "
                f"{each[-1]:.3g}, or declare it: unequal_tokens = true"
            )
        return self

    @property
    def steps(self) -> int:
        """The number of sizes."""
        return len(self.sizes or ()) or self.count or 0


def _join_sizes(sizes: Sequence[float]) -> str:
    return f"[{', '.join(f'{size:g}' for size in sizes)}]"
