"""What a page says of a ladder, checked: sizes with their rows, arms over sizes, best rates."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layerlab.errors import UserError

Number = int | float | None


class _LadderPart(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, strict=True)


class _LadderRow(_LadderPart):
    arm: str
    against: str = ""
    n: int = 0
    nats: Number = None
    bits_per_byte: Number = None
    difference: Number = None
    low: Number = None
    high: Number = None
    holm: Number = None
    rate: Number = None
    flops: Number = None
    verdict: str = "no verdict"


class _Size(_LadderPart):
    parameters: int | float = Field(gt=0)
    tokens: int | float = Field(ge=0)
    rows: list[_LadderRow] = []


class _Gain(_LadderPart):
    parameters: int | float = Field(gt=0)
    gain: Number = None
    low: Number = None
    high: Number = None


class _Band(_LadderPart):
    parameters: list[float] = []
    gain: list[Number] = []
    low: list[Number] = []
    high: list[Number] = []


class _LadderArm(_LadderPart):
    arm: str
    said: str = ""
    gains: list[_Gain] = []
    band: _Band | None = None


class _Best(_LadderPart):
    parameters: int | float = Field(gt=0)
    rate: Number = Field(default=None, gt=0)
    swept: int = 0


class _Rates(_LadderPart):
    arm: str
    best: list[_Best] = []
    drift: Number = None
    low: Number = None
    high: Number = None


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
