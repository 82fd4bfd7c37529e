"""Options of a variant as they are typed; read and checked without torch."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from layerlab.blocks.shape import Shape
from layerlab.errors import UserError
from layerlab.known_names import PART_OPTIONS, PLUGINS
from layerlab.records.parse import literal_of
from layerlab.validation import short_repr, suggest


def check_options(names: Iterable[str]) -> None:
    """Refuse options and sizes that nothing in the package has.

    What installed plug-ins declare is known only once they are imported: with one, all names pass.

    Raises:
        UserError: nothing has an option of this name.
    """
    known = PART_OPTIONS | {one.name for one in fields(Shape)}
    for name in names:
        last = name.rpartition(".")[2]
        if last not in known and not entry_points(group=PLUGINS):
            raise UserError(
                f"no option or size is called {short_repr(name)}; {suggest(last, sorted(known))}"
                "each variant shows its own: type for example layerlab variants llama"
            )


def check_match(names: Sequence[str], by: Any, against: Any) -> None:
    """Refuse to match nothing, or by no size.

    Raises:
        UserError: no variant is named, or no size to match by.
    """
    if (by is None and against is not None) or (by is not None and not names):
        raise UserError(
            "--match resizes a variant that is named until it equals another; "
            "type: layerlab variants pangu-pi --match depth --against llama"
        )


def parse_settings(name: str, settings: str) -> dict[str, Any]:
    """Parse the sizes and options behind the name of a variant, with commas between them.

    Raises:
        UserError: as `parse_options`.

    Example:
        >>> parse_settings("pangu-pi", "ffn.activations=silu,gelu-tanh,width=64")
        {'ffn.activations': ('silu', 'gelu-tanh'), 'width': 64}
    """
    entries = re.split(r",(?=[^,=]*=)|,$", settings)  # a value may be a list
    return parse_options(filter(None, entries), typed=f"{name}:")


def parse_options(
    entries: Iterable[str], typed: str = "--option ", example: str = "shortcut.bias=true"
) -> dict[str, Any]:
    """Parse options of a command line: name=value, with a value as in Python or a bare text.

    Args:
        typed: stands before an option where it is typed.
        example: of an option that would be read.

    Raises:
        UserError: an entry without a name or without a value.

    Example:
        >>> parse_options(["shortcut.r=1/2", "ffn.activations=silu,gelu-tanh", "head=tied"])
        {'shortcut.r': 0.5, 'ffn.activations': ('silu', 'gelu-tanh'), 'head': 'tied'}
    """
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UserError(
                f"cannot read the option {short_repr(entry)}; expected a name and a value: "
                f"type {typed}{example}"
            )
        if (name := name.strip()) in found:
            raise UserError(f"{typed}{short_repr(name)} is given twice; type it once")
        found[name] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """Return a text read as Python, a fraction, a lower-case truth or a list, else as it is."""
    try:
        return literal_of(text)
    except ValueError:
        pass
    fraction = re.fullmatch(r"(\d{1,18})/([1-9]\d{0,17})", text)
    if fraction:
        return int(fraction[1]) / int(fraction[2])
    if text in ("true", "false"):
        return text == "true"
    if "," in text:
        inside = text.strip("[]()")
        return tuple(_value(piece.strip()) for piece in inside.split(",") if piece.strip())
    return text
