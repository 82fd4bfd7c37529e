"""YAML as data, and no more than a machine can hold: ten lines can ask for a billion values."""

from collections.abc import Mapping
from typing import Any

import yaml
from yaml.constructor import ConstructorError

NODES = 200_000  # values, each alias counted as often as it stands there
DIGITS = 64  # of a number; YAML counts in sixties too, and takes its time


class BoundedLoader(yaml.SafeLoader):
    """YAML as data, whose numbers and merges are bounded."""

    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge what `<<` names into a table, and count: ten lines can ask for a billion pairs.

        Raises:
            ConstructorError: it is too much.
        """
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                self._count(value.value if isinstance(value, yaml.SequenceNode) else [value])
        super().flatten_mapping(node)

    def _count(self, parts: list[yaml.Node]) -> None:
        for part in parts:
            if isinstance(part, yaml.MappingNode):
                self.flatten_mapping(part)
            self.merged += len(part.value)
            if self.merged > NODES:
                raise ConstructorError(None, None, f"it merges over {NODES:,} values", None)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a whole number or one with a point.

        Raises:
            ConstructorError: it is no number, or has too many digits.
        """
        if len(node.value) > DIGITS:
            expectation = f"expected a number of at most {DIGITS} digits"
            raise ConstructorError(None, None, expectation, node.start_mark)
        integral = node.tag == "tag:yaml.org,2002:int"
        found: int | float = (self.construct_yaml_int if integral else self.construct_yaml_float)(
            node
        )
        return found


for _kind in ("int", "float"):
    BoundedLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", BoundedLoader.construct_number)


def check_repeats(content: Any) -> None:
    """Refuse content that its aliases repeat into more than `NODES` values, or without end.

    Raises:
        ValueError: they do.

    Example:
        >>> check_repeats(yaml.load("&a [1, *a]", Loader=BoundedLoader))
        Traceback (most recent call last):
        ValueError: it repeats itself into more than 200,000 values; shorten it
    """
    waiting, count = [content], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            inner = list(value.values())
        else:
            inner = list(value) if isinstance(value, list | tuple) else []
        count += len(inner)
        if count > NODES:
            raise ValueError(f"it repeats itself into more than {NODES:,} values; shorten it")
        waiting += inner
