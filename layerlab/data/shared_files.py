"""Sources that share files, where what is held out of one may be learned from the other.

Copies of documents are found by their hashes. A file of plain text is one document, of which each
source holds out an end of its own, and those ends are no copies of anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from layerlab.data.places import list_shown
from layerlab.recipes.paths import DOCUMENTATION, HUB, KEPT
from layerlab.recipes.training_sections import DataSection, Source
from layerlab.validation import expand_home


def describe_shared(
    trained: Sequence[Source], held_out: Sequence[Source] | None = None
) -> list[str]:
    """Describe which sources may learn what is held out of others; nothing where none does.

    Args:
        trained: that are learned.
        held_out: whose ends are held out; those that are learned, where it is left out.
    """
    return list(dict.fromkeys(_describe(trained, trained if held_out is None else held_out)))


def describe_learned(
    base: DataSection, held_out: Iterable[tuple[Source, bool]], share: float
) -> list[str]:
    """Describe which held-out ends a base may have learned; nothing where none.

    Args:
        base: the texts of the base.
        held_out: sources whose ends are held out later, each with whether it is cleaned before,
            which moves the cut.
        share: that is held out of each of them.
    """
    # Of shards the first alone has an end that is held out.
    kept = 0.0 if base.shard_bytes else base.validation_fraction
    found = []
    for one, (other, cleaned) in product(base.sources, held_out):
        own, its = _list_files(one), _list_files(other)
        if own & its and (cleaned or kept < share or _reaches_in(one, other, own, its)):
            found.append(
                f"the base may have learned what is held out of {_name(other)}, and its loss then "
                "tells what was memorized: base.recipe and [data] do not cut that text at one "
                "place; give both the same validation_fraction and limit, and do not clean it"
            )
    return list(dict.fromkeys(found))


def _describe(trained: Sequence[Source], held_out: Sequence[Source]) -> Iterator[str]:
    files = {one: _list_files(one) for one in {*trained, *held_out}}
    for one, other in product(trained, held_out):
        if _reaches_in(one, other, files[one], files[other]):
            first, second = sorted((_name(one), _name(other)))
            yield (
                f"{first} and {second} share files, of which they hold out other ends: what is "
                "held out of one may be learned from the other, and its loss then tells what was "
                "memorized"
            )


def _reaches_in(one: Source, other: Source, own: frozenset[str], its: frozenset[str]) -> bool:
    """Return whether what is learned of a source may reach into what is held out of another."""
    if own != its:
        return bool(own & its)
    return other.limit is not None and (one.limit is None or one.limit > other.limit)


def _name(source: Source) -> str:
    return f"{source.text} (limit = {source.limit})" if source.limit else source.text


def _list_files(source: Source) -> frozenset[str]:
    """Return the files of a source, or what it is called where it has none of its own."""
    given = source.text
    if given in (DOCUMENTATION, *KEPT) or given.startswith(HUB):
        return frozenset({f"{given} {source.subset} {source.split}"})
    path = expand_home(given)
    files = list_shown(path) if path.is_dir() else [path]
    return frozenset(str(one.resolve()) for one in files)
