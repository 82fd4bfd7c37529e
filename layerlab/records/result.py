"""The result of a run, accepted only if it agrees with the run's other files.

It carries a digest over itself, the manifest and the journal, and its loss is that of the journal's
last evaluation. Whoever can write all three files can forge them: see docs/security.md.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from layerlab.errors import UserError
from layerlab.records.events import FILE as EVENTS
from layerlab.records.events import read_lines
from layerlab.records.parse import digest_of, explain, get_table, json_of, read_json
from layerlab.system.files import check_regular
from layerlab.validation import short_repr

FILE, MANIFEST = "result.json", "manifest.json"
SCHEMA = 2
# Numbers that a line of a journal has, where it has them.
COUNTED = {"update", "tokens", "seconds", "flops", "loss", "nats", "bits_per_byte", "accuracy"}
# What the last evaluation says too.
LOSSES = ("nats", "bits_per_byte", "accuracy")
# More than any machine counts, or any loss comes to.
MOST, WORST, LARGEST = 1e30, 1e9, 10**18
StoredPositive = Annotated[float, Field(gt=0, le=MOST)]
StoredCount = Annotated[int, Field(ge=0, le=LARGEST)]
Loss = Annotated[float, Field(ge=-WORST, le=WORST)]
STRICT = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class BlockLosses(BaseModel):
    """The loss of each held-out block, and its tokens."""

    model_config = STRICT
    nats: list[Loss] = Field(min_length=1)
    tokens: list[Annotated[int, Field(gt=0, le=LARGEST)]]

    @model_validator(mode="after")
    def _alike(self) -> "BlockLosses":
        if len(self.nats) != len(self.tokens):
            raise ValueError(f"{len(self.nats)} nats and {len(self.tokens)} tokens")
        return self


class Result(BaseModel):
    """The fields of result.json that are checked; it may hold more."""

    model_config = STRICT
    schema_version: int = Field(alias="schema", ge=1, le=SCHEMA)
    run: str
    arm: str
    seed: StoredCount
    rate: StoredPositive
    nats: Loss | None
    bits_per_byte: Loss | None
    accuracy: Loss | None
    step0_nats: Loss | None
    updates: StoredCount
    tokens: StoredCount
    seconds: Annotated[float, Field(ge=0, le=MOST)]
    tokens_per_second: StoredPositive | None
    peak_memory_bytes: StoredCount | None
    parameters: StoredCount
    flops: Annotated[float, Field(ge=0, le=MOST)]
    diverged: Annotated[str, Field(min_length=1)] | None
    weights: str
    blocks: BlockLosses | None = None
    digest: str | None = None

    @model_validator(mode="after")
    def _check_end(self) -> "Result":
        losses = [getattr(self, name) for name in LOSSES]
        # Bits per byte are not given where the text does not come back from its tokens.
        missing = None in (self.nats, self.accuracy)
        if missing if self.diverged is None else any(one is not None for one in losses):
            raise ValueError("it has neither a loss nor a divergence that is declared, or both")
        if self.schema_version > 1 and self.digest is None:
            raise ValueError("it has no digest")
        return self


def seal(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with its schema and its digest over manifest and journal."""
    record = {"schema": SCHEMA, **result}
    return {**record, "digest": _digest(folder, record)}


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read the result of a finished run; None while there is none.

    Raises:
        UserError: it is damaged, or not that of what lies beside it.
    """
    try:
        for name in (FILE, MANIFEST, EVENTS):
            check_regular(folder / name)
        found = read_json(folder / FILE)
        if not isinstance(found, dict):
            raise ValueError("it is no table")
        _check(folder, found)
    except FileNotFoundError as error:
        if Path(error.filename) == folder / FILE:
            return None
        raise _refusal(folder, f"{Path(error.filename).name} is missing") from None
    except ValidationError as error:
        raise _refusal(folder, explain(error)) from None
    except (OSError, ValueError) as error:
        raise _refusal(folder, str(error)) from None
    return found


def _check(folder: Path, found: dict[str, Any]) -> None:
    result = Result.model_validate(found)
    manifest = read_json(folder / MANIFEST)
    for name in ("run", "arm"):
        if not isinstance(manifest, dict) or manifest.get(name) != found[name]:
            raise ValueError(f"its {name} is {short_repr(found[name])}, which is not {MANIFEST}'s")
    journal = _Journal(folder)
    trained = get_table(get_table(manifest, "recipe"), "train")
    if result.digest is None and "learning_rate" in trained:  # by which name 0.1 knew none
        raise ValueError("it has no digest, which every run of today's settings has")
    if result.digest is not None and result.digest != _digest(folder, found):
        raise ValueError(
            f"its digest is not that of {MANIFEST}, {EVENTS} and itself: one was changed since"
        )
    if result.diverged is None:
        _check_journal(found, journal)
    elif result.diverged not in journal.notes:
        raise ValueError(f"it declares a divergence that {EVENTS} does not tell of")
    account = manifest.get("model")
    counted = account.get("parameters") if isinstance(account, dict) else None
    if counted is not None and counted != result.parameters:
        raise ValueError(
            f"its parameters are {result.parameters:,}, and {MANIFEST} has {short_repr(counted)}"
        )


class _Journal:
    """The ends of a journal, which may be longer than memory; a result is compared with them."""

    def __init__(self, folder: Path) -> None:
        self.first: Mapping[str, Any] = {}
        self.last: Mapping[str, Any] = {}
        self.notes = set[Any]()
        for event in _events(folder):
            if event["kind"] == "evaluation":
                self.first, self.last = self.first or event, event
            elif event["kind"] == "note" and isinstance(event.get("text"), str):
                self.notes.add(event["text"])


def _check_journal(found: Mapping[str, Any], journal: _Journal) -> None:
    """Raise where a result is not what the first and the last evaluation of a journal say."""
    last = journal.last
    final = {"updates": last.get("update"), **{name: last.get(name) for name in LOSSES}}
    final |= {name: last[name] for name in ("tokens", "flops") if name in last}
    for name, value in final.items():
        if value != found[name]:
            raise ValueError(
                f"its {name} is {short_repr(found[name])}, and the last evaluation in {EVENTS} has "
                f"{short_repr(value)}"
            )
    first = journal.first.get("nats") if journal.first.get("update") == 0 else None
    if first is not None and first != found["step0_nats"]:
        raise ValueError(
            f"its step0_nats is {short_repr(found['step0_nats'])}, and the first evaluation in "
            f"{EVENTS} has {short_repr(first)}"
        )


def _events(folder: Path) -> Any:
    """Return the complete lines of a journal."""
    for number, line in enumerate(read_lines(folder / EVENTS), 1):
        try:
            event = json_of(line.decode())
        except ValueError:
            event = None
        if not isinstance(event, dict) or not {"kind", "update"} <= event.keys():
            raise ValueError(f"line {number} of {EVENTS} is no event")
        for name in COUNTED & event.keys():
            if not isinstance(event[name], int | float | None) or abs(event[name] or 0) > MOST:
                raise ValueError(f"line {number} of {EVENTS}: {name} is {short_repr(event[name])}")
        yield event


def _digest(folder: Path, result: Mapping[str, Any]) -> str:
    return digest_of(result, *(_hash(folder / name) for name in (MANIFEST, EVENTS)))


def _hash(path: Path) -> bytes:
    """Return the SHA-256 of a text; ends of lines are whatever a system, or git, makes of them."""
    found, end = hashlib.sha256(), b""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            joined = end + piece
            # A line that ends where the piece does may have its other half in the next.
            end = b"\r" if joined.endswith(b"\r") else b""
            found.update(joined.removesuffix(b"\r").replace(b"\r\n", b"\n"))
    found.update(end)
    return found.digest()


def _refusal(folder: Path, why: str) -> UserError:
    line = " ".join(why.split())[:300]
    return UserError(f"{folder / FILE} is not believed: {line}; delete {folder} and run it again")
