"""Number formats as frozen values, and the names that users give them."""

import difflib
import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

from layerlab.errors import UserError
from layerlab.validation import Constraint, short_repr

Overflow: TypeAlias = Literal["inf", "saturate", "nan"]
Per: TypeAlias = Literal["tensor", "channel", "group"]
ScaleFormat: TypeAlias = Literal["power of two", "fp8_e4m3"]

MOST_DIGITS = 53
SINGLE = 24  # digits of float32
WIDEST = (-1074, 1023)
POLICIES: tuple[Overflow, ...] = ("inf", "saturate", "nan")
PERS: tuple[Per, ...] = ("tensor", "channel", "group")
SCALES: tuple[ScaleFormat, ...] = ("power of two", "fp8_e4m3")
WHOLE = Constraint(kind=int)
COUNT = Constraint(kind=int, least=1)
NUMBER = Constraint(kind=float)


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, with subnormals.

    Attributes:
        name: what `find` reads.
        digits: t, the bits of the significand with the hidden one.
        lowest: the exponent of the smallest normal number; None where exponents have no limit.
        highest: the exponent of the largest number; None where exponents have no limit.
        largest: the largest finite number.
        overflow: what becomes of a result above the largest: "inf"; "saturate" (the largest number,
            of an infinity too); "nan", for formats that have no infinity.
    """

    name: str
    digits: int
    lowest: int | None
    highest: int | None
    largest: float
    overflow: Overflow = "inf"

    def __post_init__(self) -> None:
        _check_limits(self.name, self.digits, self.lowest, self.highest)
        if self.overflow not in POLICIES:
            raise UserError(
                f"{short_repr(self.name)} overflows to {short_repr(self.overflow)}; expected "
                f"{', '.join(POLICIES)}: type for example overflow='inf'"
            )
        if not self._reaches(self.largest):
            raise UserError(
                f"{short_repr(self.name)} has the largest number {short_repr(self.largest)}; "
                "expected one of its digits with its highest exponent, or math.inf without one: "
                "type for example find('t11:-14:15')"
            )

    def _reaches(self, number: Any) -> bool:
        """Return whether a number fits the format's digits and has its highest exponent."""
        if number not in NUMBER or self.highest is None:
            return self.highest is None and number == math.inf
        significand, exponent = math.frexp(number)
        integral = math.ldexp(significand, self.digits).is_integer()
        return number > 0 and integral and exponent - 1 == self.highest

    @property
    def unit(self) -> float:
        """Return the unit roundoff u = 2^-t: the largest relative error of rounding to nearest."""
        return 2.0**-self.digits


@dataclass(frozen=True)
class Integer:
    """Whole numbers times a scale that is fitted to the values at hand.

    Attributes:
        name: what `find` reads.
        bits: of one number.
        per: which values share a scale: all, those along the axis, or `group` of these.
        group: how many neighbours along the axis share a scale, where `per` is "group".
        symmetric: zero is in the middle and there is no zero point.
        full: a symmetric one has -2^(bits - 1) as well, as two's complement has.
        axis: along which a channel or a group lies; the last one holds the features of a token,
            and the inputs of one output of a linear layer's weight.
        weights_only: what meets weights in this format stays in that of results.
    """

    name: str
    bits: int
    per: Per = "tensor"
    group: int | None = None
    symmetric: bool = True
    axis: int = -1
    weights_only: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if self.bits not in WHOLE or not 2 <= self.bits <= 16:
            raise UserError(
                f"{short_repr(self.name)} has {short_repr(self.bits)} bits; expected 2 to 16: "
                "type int8 or int4"
            )
        grouped = self.group in COUNT if self.per == "group" else self.group is None
        if self.per not in PERS or not grouped:
            raise UserError(
                f"{short_repr(self.name)} has scales per {short_repr(self.per)} with "
                f"group={short_repr(self.group)}; expected {', '.join(PERS)}, and a size for "
                "groups alone: type for example per='group', group=32"
            )
        if self.axis not in WHOLE:
            raise UserError(
                f"{short_repr(self.name)} looks along axis {short_repr(self.axis)}; expected a "
                "whole number: type for example axis=-1"
            )

    @property
    def ends(self) -> tuple[int, int]:
        """Return the smallest and the largest number that is stored."""
        most = 2 ** (self.bits - self.symmetric) - 1
        return (-most - self.full if self.symmetric else 0), most

    @property
    def steps(self) -> float:
        """Return how many times its scale the largest size is, or what lies between both ends."""
        return self.ends[1] + self.full / 2


@dataclass(frozen=True)
class Scaled:
    """A short floating format times a scale, which takes the largest value to its largest number.

    Attributes:
        name: what `find` reads.
        element: the format of one value.
        per, group: which values share a scale, as of `Integer`.
        weights_only: as of `Integer`.
    """

    name: str
    element: Format
    per: Per
    group: int | None = None
    weights_only: bool = False
    axis: ClassVar[int] = -1


@dataclass(frozen=True)
class Block:
    """Blocks along the last axis whose elements share a scale.

    Attributes:
        name: what `find` reads.
        element: the format of one element.
        size: elements of a block.
        scale: "power of two" (MX, eight bits), or "fp8_e4m3" under a scale of the whole tensor
            (NVFP4).
        weights_only: as of `Integer`.
    """

    name: str
    element: Format
    size: int
    scale: ScaleFormat
    weights_only: bool = False

    def __post_init__(self) -> None:
        if self.size not in COUNT:
            raise UserError(
                f"{short_repr(self.name)} has blocks of {short_repr(self.size)}; expected a whole "
                "number of elements, at least 1: type for example size=32"
            )
        if not isinstance(self.element, Format) or self.element.highest is None:
            raise UserError(
                f"{short_repr(self.name)} has elements of {short_repr(self.element)}; expected a "
                "Format with a highest exponent: type for example find('fp8_e4m3')"
            )
        if self.scale not in SCALES:
            raise UserError(
                f"{short_repr(self.name)} has a scale of {short_repr(self.scale)}; expected "
                f"{' or '.join(map(repr, SCALES))}: type one of them"
            )


def _check_limits(name: Any, digits: Any, lowest: Any, highest: Any) -> None:
    """Check digits and exponents before anything is computed with them."""
    if digits not in WHOLE or not 1 <= digits <= MOST_DIGITS:
        raise UserError(
            f"{short_repr(name)} has {short_repr(digits)} digits; expected 1 to {MOST_DIGITS}, "
            "with the hidden one: type for example t11"
        )
    given = [one for one in (lowest, highest) if one is not None]
    within = all(one in WHOLE and WIDEST[0] <= one <= WIDEST[1] for one in given)
    if not within or given != sorted(given):
        raise UserError(
            f"{short_repr(name)} has impossible exponents; expected the lowest, then the highest, "
            f"from {WIDEST[0]} to {WIDEST[1]}: type for example t11:-14:15"
        )


AnyFormat: TypeAlias = Format | Integer | Scaled | Block


def spans_tensor(format: AnyFormat) -> bool:
    """Return whether what a number is rounded to depends on the other tokens of its tensor.

    Example:
        >>> [spans_tensor(find(name)) for name in ("int8", "nvfp4", "int8:channel", "mxfp4")]
        [True, True, False, False]
    """
    if isinstance(format, Integer | Scaled):
        return not format.weights_only and (format.per == "tensor" or format.axis != -1)
    return isinstance(format, Block) and not format.weights_only and format.scale == "fp8_e4m3"


def _ieee(name: str, digits: int, lowest: int, highest: int) -> Format:
    return Format(name, digits, lowest, highest, largest(digits, highest))


def largest(digits: int, highest: int) -> float:
    """Return the largest number of so many digits with this exponent."""
    return math.ldexp(2.0 - 2.0 ** (1 - digits), highest)


FLOATS = {
    one.name: one
    for one in (
        _ieee("fp64", 53, -1022, 1023),
        _ieee("fp32", 24, -126, 127),
        _ieee("tf32", 11, -126, 127),
        _ieee("bf16", 8, -126, 127),
        _ieee("fp16", 11, -14, 15),
        # The eight-bit format with four exponent bits gives infinity's place to finite numbers.
        Format("fp8_e4m3", 4, -6, 8, 448.0, "saturate"),
        _ieee("fp8_e5m2", 3, -14, 15),
        # Six and four bits: neither infinity nor NaN.
        Format("fp6_e2m3", 4, 0, 2, 7.5, "saturate"),
        Format("fp6_e3m2", 3, -2, 4, 28.0, "saturate"),
        Format("fp4_e2m1", 2, 0, 2, 6.0, "saturate"),
    )
}
BLOCKS = {
    one.name: one
    for one in (
        Block("mxfp8_e4m3", FLOATS["fp8_e4m3"], 32, "power of two"),
        # A block's scale keeps its elements in range, so that what is above saturates.
        Block("mxfp8_e5m2", replace(FLOATS["fp8_e5m2"], overflow="saturate"), 32, "power of two"),
        Block("mxfp6_e2m3", FLOATS["fp6_e2m3"], 32, "power of two"),
        Block("mxfp6_e3m2", FLOATS["fp6_e3m2"], 32, "power of two"),
        # Whole 64ths. Two's complement has one more below zero, which the largest number's
        # definition and the authors' own code leave out.
        Block(
            "mxint8", Format("mxint8 element", 7, 0, 0, 127 / 64, "saturate"), 32, "power of two"
        ),
        Block("mxfp4", FLOATS["fp4_e2m1"], 32, "power of two"),
        Block("nvfp4", FLOATS["fp4_e2m1"], 16, "fp8_e4m3"),
    )
}
# As torch and others call them.
ALIASES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
NAMES = (*FLOATS, *BLOCKS, "int8", "int4")
INTEGER = re.compile(r"int(\d+)")
SCALED = re.compile(r"(fp[468]_\w+):(tensor|channel|group([1-9]\d*))")
WEIGHTS = ":weights"
DIGITS = re.compile(r"t(\d+)(?::(-?\d+):(-?\d+))?")
SPELLINGS = (
    "t11 (eleven digits, no limit to the exponent), t11:-14:15 (exponents from -14 to 15), "
    "fp8_e4m3:nan (or :inf, :saturate), fp8_e4m3:channel (scaled; or :tensor, :group128), "
    "int8:channel, int4:group128:asymmetric, mxfp4:weights (weights alone)"
)


def find(format: Any) -> AnyFormat:
    """Find the format that a name stands for; a format itself and a torch dtype are also taken.

    "t11" has eleven digits and no limit to the exponent, "t11:-14:15" exponents from -14 to 15; a
    last ":inf", ":saturate" or ":nan" sets what overflow gives. Whole numbers take ":channel" (one
    scale for each vector along the last axis) or ":group32", ":asymmetric" or ":full" (from -8 in
    four bits, as symmetric GPTQ has it), and ":axis-2"; fp8, fp6 and fp4 are scaled with ":tensor",
    ":channel" or ":group32". Of what is scaled, a last ":weights" leaves alone what weights are
    multiplied with.

    Source: budzinskiy25, section 4, for t digits; micikevicius22, Table 1; rouhani23, Table 1.

    Raises:
        UserError: no such format, or one that cannot be.

    Example:
        >>> find("bf16").unit, find("t11:-14:15").largest, find("int4:group32").group
        (0.00390625, 65504.0, 32)
    """
    if isinstance(format, AnyFormat):
        return format
    text = str(format).removeprefix("torch.").strip().lower()
    if text.endswith(WEIGHTS):
        scaled = find(text.removesuffix(WEIGHTS))
        if isinstance(scaled, Format):
            raise UserError(
                f"{scaled.name} has no scale, so it is the format of results as well; expected one "
                f"of {', '.join(BLOCKS)}, int8, fp8_e4m3:channel: type for example mxfp4:weights"
            )
        return replace(scaled, name=text, weights_only=True)
    if text in BLOCKS:
        return BLOCKS[text]
    head = text.split(":")[0]
    head, tail = ALIASES.get(head, head), text.split(":")[1:]
    if INTEGER.fullmatch(head):
        return _integer(text, int(head[3:]), tail)
    parts = SCALED.fullmatch(":".join([head, *tail]))
    if parts and parts[1] in FLOATS:
        element = replace(FLOATS[parts[1]], overflow="saturate")
        if parts[3]:
            return Scaled(text, element, "group", int(parts[3]))
        return Scaled(text, element, cast(Per, parts[2]))
    policy = tail.pop() if tail and tail[-1] in POLICIES else None
    found = FLOATS.get(head) if not tail else None
    if found is None:
        match = DIGITS.fullmatch(":".join([head, *tail]))
        if match is None:
            raise _unknown(format, head)
        found = _digits(match)
    return found if policy is None else _with(found, policy)


def _unknown(given: Any, head: str) -> UserError:
    # "mxfp8" stands for two: whoever types it is to choose.
    near = [name for name in NAMES if head and name.startswith(f"{head}_")]
    near = near or difflib.get_close_matches(head, NAMES, n=1)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    names = f"{', '.join(NAMES)}, and {SPELLINGS}"
    return UserError(f"no number format is called {short_repr(given)}; {hint}known: {names}")


def _with(format: Format, policy: Any) -> Format:
    if policy == format.overflow:
        return format
    if policy == "inf" and format.name in FLOATS and format.overflow == "saturate":
        raise UserError(
            f"{format.name} has no infinity to overflow to; type {format.name}, which saturates, "
            f"or {format.name}:nan"
        )
    return replace(format, name=f"{format.name}:{policy}", overflow=policy)


def _digits(match: re.Match[str]) -> Format:
    """Return the format with so many digits, with or without limits to the exponent."""
    name, digits = match.group(0), int(match.group(1))
    if match.group(2) is None:
        return Format(name, digits, None, None, math.inf)
    lowest, highest = int(match.group(2)), int(match.group(3))
    _check_limits(name, digits, lowest, highest)
    return Format(name, digits, lowest, highest, largest(digits, highest))


def _integer(name: str, bits: int, options: list[str]) -> Integer:
    found = Integer(name, bits)
    kinds: dict[str, str] = {}
    for option in options:
        kind, changes = _option(option)
        if kind in kinds:
            raise UserError(
                f"{short_repr(name)} has both {kinds[kind]} and {option}; expected one {kind}: "
                f"type int{bits}:{option}"
            )
        kinds[kind] = option
        found = replace(found, **changes)
    return found


def _option(option: str) -> tuple[str, dict[str, Any]]:
    """Return which setting an option of whole numbers changes, and to what."""
    group = re.fullmatch(r"group([1-9]\d*)", option)
    axis = re.fullmatch(r"axis(-?\d+)", option)
    if group:
        return "scale", {"per": "group", "group": int(group.group(1))}
    if axis:
        return "axis", {"axis": int(axis.group(1))}
    if option in {"tensor", "channel"}:
        return "scale", {"per": option}
    if option in {"symmetric", "asymmetric", "full"}:
        return "symmetry", {"symmetric": option != "asymmetric", "full": option == "full"}
    raise UserError(
        f"whole numbers have no option {short_repr(option)}; expected tensor, channel, group32, "
        "axis-2, symmetric, asymmetric or full: type for example int8:channel:asymmetric"
    )
