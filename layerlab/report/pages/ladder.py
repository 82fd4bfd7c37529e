"""Data of the page of a ladder, checked: sizes with their rows, arms over sizes, best rates."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layerlab.errors import UserError

StoredNumber = int | float | None


class _LadderPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, strict=True)


class _Tried(_LadderPart):
    rate: float = Field(gt=0)
    nats: StoredNumber = None
    bits_per_byte: StoredNumber = None


class _LadderRow(_LadderPart):
    arm: str
    against: str = ""
    n: int = 0
    nats: StoredNumber = None
    bits_per_byte: StoredNumber = None
    difference: StoredNumber = None
    low: StoredNumber = None
    high: StoredNumber = None
    holm: StoredNumber = None
    rate: StoredNumber = None
    rates: list[_Tried] = []
    flops: StoredNumber = None
    verdict: str = "no verdict"


class _Size(_LadderPart):
    parameters: int | float = Field(gt=0)
    tokens: int | float = Field(ge=0)
    runs: int = 0
    rows: list[_LadderRow] = []


class _Gain(_LadderPart):
    parameters: int | float = Field(gt=0)
    gain: StoredNumber = None
    low: StoredNumber = None
    high: StoredNumber = None


class _Band(_LadderPart):
    parameters: list[float] = []
    gain: list[StoredNumber] = []
    low: list[StoredNumber] = []
    high: list[StoredNumber] = []


class _LadderArm(_LadderPart):
    arm: str
    said: str = ""
    gains: list[_Gain] = []
    band: _Band | None = None


class _Best(_LadderPart):
    parameters: int | float = Field(gt=0)
    rate: StoredNumber = Field(default=None, gt=0)
    swept: int = 0


class _Rates(_LadderPart):
    arm: str
    best: list[_Best] = []
    drift: StoredNumber = None
    low: StoredNumber = None
    high: StoredNumber = None


class _Ladder(_LadderPart):
    sizes: list[_Size] = []
    arms: list[_LadderArm] = []
    rates: list[_Rates] = []
    tests: int = 0
    unit: str = "nats"


def check_ladder(given: Any) -> dict[str, Any]:
    """Return the part of a comparison's content that its sizes have; empty where there is none.

    Raises:
        UserError: it is of another kind.
    """
    if not given:
        return {}
    try:
        return _Ladder.model_validate(given).model_dump()
    except ValidationError:
        raise UserError(
            "this is no content of a comparison: 'ladder' is damaged; "
            "type layerlab compare RECIPE.toml to make it anew"
        ) from None


def tabulate_sweeps(ladder: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return every rate that was swept, and a row of losses by rate for each arm and size.

    Args:
        ladder: checked; an arm has no row at a size where it has one rate.
        metric: the key of a loss.
    """
    rows = [
        {
            "arm": row["arm"],
            "parameters": size["parameters"],
            "best": row["rate"],
            "losses": {one["rate"]: one.get(metric) for one in row["rates"]},
        }
        for size in ladder.get("sizes", ())
        for row in size["rows"]
        if len(row["rates"]) > 1
    ]
    return {"rates": sorted({rate for row in rows for rate in row["losses"]}), "rows": rows}
