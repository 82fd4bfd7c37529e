"""By how much, and in how many directions, each weight matrix differs from another checkpoint's."""

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.loading.model import check_named, load_model
from layerlab.loading.names import label
from layerlab.loading.weights.matrices import read_matrices
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.quantities.weights.matrices import singular_values
from layerlab.observe.architecture.weight_matrices import WeightMatrix
from layerlab.records.layer_names import layer_name

USE = """\
`layerlab inspect MODEL --weights --against OTHER` asks for it: of a tuned model against its base,
of a quantized one against that which it was made from, of one checkpoint against an earlier one.
Neither is loaded; a matrix of each is held in float64 at a time, so that it goes for 70 billion
parameters as for one. Where the model is in memory, so is the other. `--measures change` leaves
the other measures of weights out.

`rank` counts the singular values of the change above those that rounding to the stored precision
makes, and is 0 where one is the other rounded to a narrower float: a merged LoRA shows its rank
there, full fine-tuning all directions. What predictions lose is another question, which `--against`
without `--weights` answers. Tools such as AWQ and SmoothQuant move scales from one matrix into the
next, which is a change here and none of the model.
"""


def _check_other(options: Mapping[str, Any]) -> None:
    """Refuse another checkpoint that there is not, before any work."""
    check_named([options["against"]] if options["against"] is not None else [])


def read(given: WeightMatrix, run: MeasureContext) -> Iterator[Row]:
    """Read one row of one matrix.

    Source: Own.

    Raises:
        NotApplicable: no other checkpoint was named, or it has no such matrix.
    """
    if "others" not in run.memory:
        run.memory["others"] = _read_others(run)
    other = next(run.memory["others"], None)
    if other is None or _place(other) != _place(given):
        run.memory["others"] = iter(())  # what follows would be compared with another matrix
        raise NotApplicable(_tell_apart(given, other))
    if other.weight.shape != given.weight.shape:
        run.notes.setdefault(str(_place(given)), _tell_apart(given, other))
        return
    try:
        found = compare(given.weight, other.weight)
    except NotApplicable as reason:
        place = f"{given.name} of {layer_name(given.layer)}"
        raise NotApplicable(f"{place} is left out: {reason}") from None
    name = label(run.options["against"])
    run.notes.setdefault("against", f"against {name}")
    yield {
        "layer": given.layer,
        "matrix": given.name,
        "expert": nan if given.expert is None else given.expert,
        **found,
    }


def compare(weight: Tensor, before: Tensor) -> Row:
    """Return how a matrix differs from what it was before.

    change = ||W - W0||_F / ||W0||_F,   cosine = <W, W0> / ||W||_F ||W0||_F

    `rank` counts the singular values of W - W0 above u (largest norm of a row + largest norm of a
    column), of the larger of |W| and |W0|: the spectral norm of independent errors of up to u of
    each weight, as rounding to the stored precision makes them. It is 0 where one of the two is the
    other in a narrower float.

    Source: Own; bandeira16, section 3.1, for the norm of independent errors.
    Unit: none.
    """
    one, other = (part.detach().to("cpu", torch.float64) for part in (weight, before))
    apart = one - other
    norms = [float(part.norm()) for part in (one, other, apart)]
    if not all(map(isfinite, norms)):
        raise NotApplicable("it, or the other checkpoint's, holds numbers that are not finite")
    values = singular_values(apart) if norms[2] else apart.new_zeros(min(apart.shape))
    kinds = [torch.finfo(part.dtype) for part in (weight, before)]
    unit = max(kind.eps for kind in kinds) / 2
    # Numbers below the normal ones are rounded as those are.
    sizes = torch.maximum(one.abs(), other.abs()).clamp(min=max(kind.tiny for kind in kinds))
    floor = unit * sum(float(sizes.norm(dim=side).max()) for side in (0, 1))
    floor += max(apart.shape) * torch.finfo(torch.float64).eps * float(values[0])
    return {
        "change": norms[2] / norms[1] if norms[1] else nan,
        "cosine": float((one * other).sum()) / (norms[0] * norms[1])
        if norms[0] * norms[1]
        else nan,
        "stable_rank": (norms[2] / float(values[0])) ** 2 if norms[2] else nan,
        "rank": 0 if _is_rounded(one, other) else int((values > floor).sum()),
        "full_rank": len(values),
    }


def _is_rounded(one: Tensor, other: Tensor) -> bool:
    """Return whether one of two matrices in float64 is the other in fewer digits."""
    return any(
        torch.equal(part.to(kind).double(), rest)
        for kind in (torch.bfloat16, torch.float16, torch.float32)
        for part, rest in ((one, other), (other, one))
    )


def close(run: MeasureContext) -> list[Row]:
    """Note that the other checkpoint has further matrices.

    Source: Own.
    """
    if (other := next(run.memory.get("others", iter(())), None)) is not None:
        run.notes.setdefault("more", _tell_apart(None, other))
    return []


def _read_others(run: MeasureContext) -> Iterator[WeightMatrix]:
    against = run.options["against"]
    if against is None:
        raise NotApplicable(
            "nothing was named to compare its weights with: type --against MODEL (in Python "
            "against=), such as the checkpoint that it was quantized or tuned from"
        )
    found = load_model(against, unloaded=True)
    if found.stored and not run.subject.stored:  # files hold experts apart that are joined there
        kind = str(found.model.dtype).removeprefix("torch.")
        found = load_model(against, device="cpu", dtype=kind, weights_only=True)
    return read_matrices(found)


def _place(given: WeightMatrix) -> tuple[int, str, int | None]:
    return given.layer, given.name, given.expert


def _tell_apart(given: WeightMatrix | None, other: WeightMatrix | None) -> str:
    """Say which matrices of two architectures stand in one place."""
    names = []
    for one in (given, other):
        name = "" if one is None else f"{one.name} ({'x'.join(map(str, one.weight.shape))})"
        names.append(f"{name} of {layer_name(one.layer)}" if one is not None else "nothing")
    return (
        f"the two are of different architectures, and not all is compared: {names[0]} here, and "
        f"{names[1]} there"
    )


MEASURES = (
    Measure(
        name="change",
        title="Weights only: how they differ from another checkpoint's",
        unit="none",
        source="Own; bandeira16",
        about=(
            "The difference between each weight matrix and that of another checkpoint, such as "
            "the one that the model was tuned or quantized from: its size, and the number of "
            "directions that it has. A merged adapter changes few directions, full fine-tuning "
            "and quantization all of them."
        ),
        equation=(
            "change = ||W - W0||_F / ||W0||_F;   cosine = <W, W0> / ||W||_F ||W0||_F;   "
            "stable rank = ||W - W0||_F^2 / ||W - W0||_2^2;   "
            "rank = #{sigma_i(W - W0) > u (max row norm + max column norm of |W| v |W0|)}"
        ),
        per=("layer", "matrix", "expert"),
        columns={
            "change": "norm of the difference, over the norm of the other's",
            "cosine": "between the two as vectors",
            "stable_rank": "about how many directions of the difference matter",
            "rank": "singular values of the difference above what rounding the weights makes",
            "full_rank": "the smaller of rows and columns",
        },
        plot=("change", "stable_rank", "rank"),
        roles={"full_rank": "size"},
        better=None,
        needs=frozenset({"matrices"}),
        read=read,
        close=close,
        check=_check_other,
        **measure_options("change"),
        default=False,
        use=USE,
    ),
)
