"""Selection of places that are rounded: patterns, each held against what ran."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from layerlab.errors import UserError
from layerlab.numerics.emulation.op_site import NUMBER, OpSite
from layerlab.validation import short_repr


def matches(site: OpSite, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns names the place, its module, or a module around it."""
    spelled = (str(site), *_around(site.module))
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in spelled)


def _around(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))


class Selection:
    """The places that are rounded, and whether every pattern that was given matched one.

    Attributes:
        ran: whether anything was done since the patterns were given.
        rounded: places where a result is rounded.
        islands: places with results in a dtype that this mode does not round.

    Args:
        model: whose modules the patterns name.
        where: patterns; None for all places.
        only: exactly these places instead.

    Raises:
        UserError: a pattern names no module, or there is none.
    """

    def __init__(
        self, model: nn.Module, where: Any = None, only: frozenset[OpSite] | None = None
    ) -> None:
        self.patterns = patterns(where, model)
        if self.patterns == ():
            raise UserError("where=[] selects no place; type where=None to round all of them")
        self.only = only
        self.ran = False
        self.rounded: set[OpSite] = set()
        self.islands: set[OpSite] = set()
        self._known: dict[OpSite, bool] = {}

    def __contains__(self, site: OpSite) -> bool:
        if self.only is not None:
            return site in self.only
        if site not in self._known:
            self._known[site] = self.patterns is None or matches(site, self.patterns)
        return self._known[site]

    def check(self) -> None:
        """Refuse a pattern that rounds nothing, if anything ran at all.

        Raises:
            UserError: its operation never happened, or happens where nothing is rounded.
        """
        for pattern in self.patterns or () if self.ran else ():
            found = {site for site in self._known if matches(site, (pattern,))}
            if not found:
                raise UserError(
                    describe_unmatched(pattern, (site.component for site in self._known))
                )
            if not found & self.rounded:
                raise UserError(self._list_unrounded(pattern, found))

    def _list_unrounded(self, pattern: str, found: set[OpSite]) -> str:
        held = min((site.component for site in found & self.islands), default=None)
        if held is not None:
            return (
                f"where={pattern!r} rounds nothing as run: {held} is in a dtype that the model's"
                " code widens to, and stays there; type mode='flat' to round it, too"
            )
        moved = min(site.component for site in found)
        return (
            f"where={pattern!r} rounds nothing: {moved} only moves or chooses values; type the"
            " place where they are computed"
        )


def patterns(where: Any, model: nn.Module) -> tuple[str, ...] | None:
    """Return the patterns that select places, with their modules looked up in the model.

    Args:
        where: one pattern or several; None for none.

    Raises:
        UserError: no module has a name like that, or this is no pattern.
    """
    if where is None:
        return None
    listed = where if isinstance(where, Iterable) and not isinstance(where, bytes) else [where]
    given = (where,) if isinstance(where, str) else tuple(listed)
    if not all(isinstance(pattern, str) for pattern in given):
        raise UserError(
            f"where={short_repr(where)} is no pattern; expected a text or a list of texts: type"
            " where='*.mlp', or where='*.self_attn:softmax'"
        )
    names = [name for name, _ in model.named_modules() if name]
    spelled = {part for name in names for part in _around(name)}
    for pattern in given:
        module = pattern.partition(":")[0]
        if not any(fnmatchcase(name, module) for name in spelled):
            raise UserError(describe_unmatched(pattern, names))
    return given


def describe_unmatched(pattern: str, names: Iterable[str]) -> str:
    """Return the message for a pattern that selects nothing."""
    known = sorted(set(names))
    # With stars and layer numbers aside, what was meant differs in a letter or two.
    plain = {NUMBER.sub("", name).replace("*", ""): name for name in reversed(known)}
    meant = NUMBER.sub("", pattern).replace("*", "")
    near = [plain[name] for name in difflib.get_close_matches(meant, plain, n=4, cutoff=0.3)]
    listed = ", ".join(near or known[:4])
    return f"where={pattern!r} matches nothing in this model; near it are {listed}"
