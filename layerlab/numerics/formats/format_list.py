"""Number formats between commas, as users type them."""

from collections.abc import Iterable

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import AnyFormat, find


def parse_formats(given: str | Iterable[str]) -> list[str]:
    """Parse formats between commas; each is kept once, as it was spelled first.

    Raises:
        UserError: a name that is no format, or none at all.
    """
    parts = given.split(",") if isinstance(given, str) else list(map(str, given))
    names = [name.strip() for name in parts if name.strip()]
    if not names:
        raise UserError("no number format is named; type for example --formats bf16,fp8_e4m3")
    spelled: dict[AnyFormat, str] = {}
    for name in names:
        spelled.setdefault(find(name), name)
    return list(spelled.values())
