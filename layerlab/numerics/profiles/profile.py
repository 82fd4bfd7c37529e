"""A numerics profile: how an engine computes a model, as a small TOML file."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.profiles.operations import BROADER, OPERATIONS
from layerlab.records.parse import toml_of
from layerlab.system.files import read_whole
from layerlab.validation import expand_home, short_repr, suggest

SHIPPED = Path(__file__).with_name("shipped")
# A result that no operation rounds: it stays in the arithmetic of what follows.
KEPT = "fp32"
ORDERS = ("normalized", "unnormalized", "renormalized")
# Results that are made of sums, and how the parts of these may be added up.
SUMMED = ("norm_inside", "projection", "scores", "softmax", "context", "router", "head")
SUMMATIONS = ("sequential", "tree", "split-k")
STAGE = re.compile(rf"\S+ ({'|'.join(SUMMATIONS)}) 0*[1-9][0-9]*")
# How torch itself runs a model as a profile says; "" where nothing here does.
RUNS = ("float32", "eager", "sdpa", "compile", "autocast", "cached")
KINDS: Mapping[str, tuple[type, str]] = {
    "format": (str, "the name of a number format"),
    "description": (str, "a text"),
    "sources": (list, "a list of texts"),
    "verified": (bool, "true or false"),
    "attention": (str, " or ".join(map(repr, ORDERS))),
    "runs": (str, " or ".join(map(repr, RUNS))),
    "operations": (dict, "a table of number formats by operation"),
    "every": (dict, "a table of whole numbers of 1 and more by operation"),
    "sums": (dict, "a table of sums by operation, as in projection = 'bf16 split-k 4'"),
}


@dataclass(frozen=True, kw_only=True)
class NumericsProfile:
    """Arithmetic by which an engine computes a model.

    Attributes:
        name: of the engine and its settings.
        format: what the model is loaded in: results that the model's code leaves in its own dtype
            are rounded to it, and what the code widens is not.
        operations: format of the results of an operation, where it is another; "fp32" rounds
            nothing, since what follows reads it before it is written.
        defaults: format in place of `format` for the results of an operation.
        every: where only one in so many results of an operation is rounded, since a compiler
            computes the others again wherever they are read; what is looked up in an embedding
            counts as a first one of "residual".
        sums: where sums are not those of torch in float32, how the accumulator is
            rounded and the parts are added up, by operation: "FORMAT sequential N" rounds it after
            every N terms, "FORMAT tree N" adds parts of N terms in pairs, "FORMAT split-k N" adds
            N parts; what stands before a comma says how each part is summed.
        attention: whether attention weights are rounded after they are "normalized", or before it,
            as a fused kernel does that divides by their sum at the end: the sum of the weights as
            they were ("unnormalized"), or of those that were rounded ("renormalized").
        description: what it stands for, in a sentence.
        sources: where it was read.
        verified: whether it was held against the engine itself.
        runs: how torch itself runs a model so, one of `RUNS`; "" where nothing here does.
    """

    name: str
    format: str = "bf16"
    operations: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    every: Mapping[str, int] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    attention: str = "normalized"
    description: str = ""
    sources: tuple[str, ...] = ()
    verified: bool = False
    runs: str = ""

    def __post_init__(self) -> None:
        for name, given in self.operations.items():
            check_operation(name, self.name)
            _find_format(given, f"{name} of the profile {self.name!r}")
        for name, count in self.every.items():
            check_operation(name, self.name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UserError(
                    f"every {name} of the profile {self.name!r} is {short_repr(count)}; expected "
                    "a whole number of 1 and more"
                )
        for name, sums in self.sums.items():
            check_operation(name, self.name)
            _check_sums(name, sums, self.name)
        _find_format(self.format, f"format of the profile {self.name!r}")
        if self.attention not in ORDERS:
            raise UserError(
                f"attention of the profile {self.name!r} is {short_repr(self.attention)}; type "
                f"{KINDS['attention'][1]}"
            )
        if self.runs not in ("", *RUNS):
            raise UserError(
                f"runs of the profile {self.name!r} is {short_repr(self.runs)}; type "
                f"{KINDS['runs'][1]}"
            )

    def default(self, operation: str) -> str:
        """Return the format of the results of an operation that stay in the model's own dtype."""
        return self.defaults.get(operation, self.format)

    @property
    def summary(self) -> str:
        """Return what it stands for, and whether that is verified."""
        text = self.description or "no description"
        return text if self.verified else f"not verified: {text}"

    def tell(self, operation: str) -> str:
        """Return in words how the results of an operation are rounded and summed.

        Example:
            >>> NumericsProfile(name="a", sums={"head": "bf16 split-k 4"}).tell("head")
            'bf16 unless widened, summed as bf16 split-k 4'
        """
        plain = self.default(operation)
        kept = plain if plain == KEPT else f"{plain} unless widened"
        parts = [self.operations.get(operation, kept)]
        every, sums = self.every.get(operation, 1), self.sums.get(operation)
        parts += [f"one in {every}"] if every > 1 else []
        parts += [f"summed as {sums}"] if sums else []
        parts += [self.attention] if operation == "attention_weights" else []
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile, for a JSON file."""
        return asdict(self)

    def take_back(self, difference: str, other: "NumericsProfile") -> "NumericsProfile":
        """Return this profile with one difference from another taken back.

        Args:
            difference: a name that `differences` gives.
            other: the other profile.
        """
        name = f"{self.name} with {difference} of {other.name}"
        if difference == "attention":
            return replace(self, name=name, attention=other.attention)
        return replace(
            self,
            name=name,
            operations=_exchange(difference, self.operations, other.operations),
            defaults={**self.defaults, difference: other.default(difference)},
            every={**self.every, difference: other.every.get(difference, 1)},
            sums=_exchange(difference, self.sums, other.sums),
        )


def _exchange(name: str, mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return a table with one entry as another has it, or has it not."""
    kept = {one: value for one, value in mine.items() if one != name}
    return {**kept, name: theirs[name]} if name in theirs else kept


def differences(a: NumericsProfile, b: NumericsProfile) -> list[str]:
    """Return what two profiles do differently: the operations, and "attention".

    Example:
        >>> a, b = NumericsProfile(name="a"), NumericsProfile(name="b", operations={"head": KEPT})
        >>> differences(a, b)
        ['head']
    """
    found = [name for name in OPERATIONS if _rounds(a, name) != _rounds(b, name)]
    # The order of what is not rounded is nothing.
    ordered = any(any(_formats(one, "attention_weights")) for one in (a, b))
    return [*found, "attention"] if ordered and a.attention != b.attention else found


def _rounds(profile: NumericsProfile, operation: str) -> tuple[Any, ...]:
    """Return how the results of an operation are rounded and summed, however that is spelled."""
    formats = _formats(profile, operation)
    every = profile.every.get(operation, 1) if any(formats) else 1
    sums = split_sums(profile.sums.get(operation, ""))
    return formats, every, [(find_rounding(one), order, int(n)) for one, order, n in sums]


def _formats(profile: NumericsProfile, operation: str) -> tuple[Any, Any]:
    """Return what rounds the results of an operation, as the code leaves them, and widened."""
    named = profile.operations.get(operation)
    return find_rounding(named or profile.default(operation)), find_rounding(named or KEPT)


@cache
def find_rounding(name: str) -> Any:
    """Return the format of a name without the name; None where it rounds no value of float32.

    Example:
        >>> find_rounding("bfloat16") == find_rounding("bf16"), find_rounding("float32")
        (True, None)
    """
    # Late: names are checked before torch is there.
    from layerlab.numerics.formats.formats import SINGLE, Format, find

    found = find(name)
    if isinstance(found, Format) and found.digits >= SINGLE:
        return None
    return replace(found, name="")


def split_sums(sums: str) -> list[list[str]]:
    """Return the stages of a sum, the innermost first: format, order and number each.

    Example:
        >>> split_sums("t14 sequential 32, fp32 sequential 128")
        [['t14', 'sequential', '32'], ['fp32', 'sequential', '128']]
    """
    return [one.split() for one in sums.split(",")] if sums else []


def check_operation(name: str, holder: str) -> None:
    """Refuse the name of an operation that there is not.

    Raises:
        UserError: there is none.
    """
    if name not in OPERATIONS:
        raise UserError(
            f"the profile {holder!r} names the operation {short_repr(name)}; "
            f"{suggest(name, OPERATIONS)}known: {', '.join(OPERATIONS)}"
        )


def _check_sums(operation: str, sums: Any, holder: str) -> None:
    given = f"sums of {operation} of the profile {holder!r}"
    if operation not in SUMMED:
        raise UserError(f"{given}: no sum makes them; known: {', '.join(SUMMED)}")
    for stages in split_sums(sums) if isinstance(sums, str) and sums else [[]]:
        order = stages[1] if len(stages) > 1 else ""
        if not STAGE.fullmatch(" ".join(stages)):
            hint = "" if order in SUMMATIONS else suggest(order, SUMMATIONS)
            raise UserError(
                f"{given} are {short_repr(sums)}; {hint}expected a format, "
                f"{' or '.join(SUMMATIONS)}, and a number of 1 and more: type 'bf16 split-k 4'"
            )
        _check_accumulator(stages[0], given)


def _check_accumulator(format: str, holder: str) -> None:
    # Late: names are checked before torch is there.
    from layerlab.numerics.formats.formats import SINGLE, Format

    found = _find_format(format, holder)
    if not isinstance(found, Format) or found.digits > SINGLE:
        raise UserError(
            f"{holder} are rounded to {short_repr(format)}; expected a floating format of float32's"
            " digits or fewer, as 'fp32', 'bf16', 'fp16' or 't14'"
        )


def _find_format(given: Any, holder: str) -> Any:
    """Return the format of a name, and say what it was of where there is none.

    Raises:
        UserError: there is none.
    """
    # Late: names are checked before torch is there.
    from layerlab.numerics.formats.formats import find

    if not isinstance(given, str):
        raise UserError(f"{holder} is {short_repr(given)}; expected {KINDS['format'][1]}")
    try:
        return find(given)
    except UserError as error:
        raise UserError(f"{holder}: {error}") from None


def list_profiles() -> list[str]:
    """Return the names of the profiles that layerlab knows, as `gap` takes them for a and b.

    Example:
        >>> "vllm" in list_profiles()
        True
    """
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load_profile(given: "str | os.PathLike[str] | NumericsProfile") -> NumericsProfile:
    """Read a profile.

    Args:
        given: the name of a shipped one, or a TOML file.

    Raises:
        UserError: there is none of that name, the file cannot be read, or says something else.

    Example:
        >>> load_profile("torch-eager").operations
        {}
    """
    if isinstance(given, NumericsProfile):
        return spell_out(given)
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"a profile is {short_repr(given)}; expected its name or a TOML file")
    shipped = SHIPPED / f"{given}.toml"
    known = list_profiles()
    path = shipped if str(given) in known else expand_home(given)
    try:
        found = toml_of(read_whole(path).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(
            f"no profile is called {short_repr(str(given))}, and as a file it cannot be read: "
            f"{error.strerror}; {suggest(given, known)}known: {', '.join(known)}"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{str(path)!r} is no text in UTF-8; expected TOML") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} is not TOML: {error}") from None
    _check_keys(found, str(path))
    profile = NumericsProfile(
        **{
            **found,
            "name": path.stem,
            "operations": found.get("operations", {}),
            "sources": tuple(found.get("sources", ())),
        }
    )
    if path != shipped:
        _check_own(profile, path)
    return spell_out(profile)


def spell_out(profile: NumericsProfile) -> NumericsProfile:
    """Return a profile in which operations have the format of the broader one, if no other.

    Example:
        >>> spell_out(NumericsProfile(name="a", operations={"norm": "fp32"})).operations
        {'branch_norm': 'fp32', 'norm': 'fp32'}
    """
    own = profile.operations
    meant = {name: own[broad] for name, broad in BROADER.items() if broad in own}
    return replace(profile, operations={**meant, **own})


def _check_own(profile: NumericsProfile, path: Path) -> None:
    """Refuse what only a profile can say that was held against its engine.

    Raises:
        UserError: it says so.
    """
    if profile.verified:
        raise UserError(
            f"{str(path)!r} says verified = true, which is said of profiles alone that tests hold "
            "against their engine; leave verified out"
        )
    if profile.runs:
        _check_run(profile, path)


def _check_run(profile: NumericsProfile, path: Path) -> None:
    """Refuse a profile that calls a run its own which computes otherwise."""
    every = map(load_profile, list_profiles())
    own = next(one for one in every if one.runs == profile.runs)
    apart = differences(profile, own)
    if apart:
        raise UserError(
            f"{str(path)!r} says runs = {profile.runs!r}, which is how torch runs {own.name}, and "
            f"differs from it in {', '.join(apart)}; leave runs out"
        )


def _check_keys(found: Mapping[str, Any], path: str) -> None:
    for name, value in found.items():
        if name not in KINDS:
            raise UserError(
                f"{path!r} has the key {short_repr(name)}; {suggest(name, KINDS)}a profile knows "
                f"{', '.join(KINDS)}"
            )
        kind, expected = KINDS[name]
        texts = () if name == "every" else _texts(value)
        if not isinstance(value, kind) or not all(isinstance(one, str) for one in texts):
            raise UserError(f"{name} in {path!r} is {short_repr(value)}; expected {expected}")


def _texts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
