"""Choice of benchmarks: by suite, by group of the source, by name, or several."""

from collections.abc import Mapping
from types import MappingProxyType

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.validation import short_repr, suggest

GENERAL = ("examination", "knowledge", "reasoning", "understanding")
SPECIAL = ("finance", "law")
# The groups of the source that a name stands for.
SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "general": GENERAL,
        **{name: (name,) for name in (*SPECIAL, *GENERAL)},
        "all": (*GENERAL, *SPECIAL),
    }
)


def select_benchmarks(names: str) -> tuple[Benchmark, ...]:
    """Select the benchmarks of comma-separated suites, groups and names, each one once.

    Raises:
        UserError: there is none of such a name.

    Example:
        >>> [one.name for one in select_benchmarks("finance,ceval")]
        ['financeiq', 'fineval', 'ceval']
    """
    found: dict[str, Benchmark] = {}
    parts = [word.strip().lower() for word in names.split(",") if word.strip()]
    for word in parts:
        for benchmark in _select_word(word):
            found[benchmark.name] = benchmark
    if not found:
        raise UserError(f"no suite is named in {short_repr(names)}; type for example --suite law")
    return tuple(found.values())


def name_suite(suite: str | None, tasks: str | None) -> str | None:
    """Return the suite that is asked for: the general one where no task is named either.

    Example:
        >>> name_suite(None, None), name_suite(None, "arc_easy")
        ('general', None)
    """
    return "general" if suite is None and tasks is None else suite


def _select_word(word: str) -> list[Benchmark]:
    if word in SUITES:
        return [one for one in BENCHMARKS.values() if one.group in SUITES[word]]
    if word in BENCHMARKS:
        return [BENCHMARKS[word]]
    known = [*SUITES, *BENCHMARKS]
    raise UserError(
        f"there is no suite or benchmark {short_repr(word)}; {suggest(word, known)}expected one of "
        f"{', '.join(known)}"
    )
