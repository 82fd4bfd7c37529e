"""Local Lipschitz constant of one block, at the input that it really had.

`local` is the largest singular value of the block's Jacobian there. Products with J and with its
transpose come from one graph: u -> J^T u is linear, so its own transpose, again by reverse mode, is
v -> J v. Each product costs one forward of the block; Golub-Kahan bidiagonalisation turns a few of
them into a lower bound with a residual that says how far it has converged.

`weights`, the product of the spectral norms of the block's matrices, is shown for comparison and
bounds nothing: dot-product attention is not globally Lipschitz (kim21).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import nan

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, Row, describe_packed
from layerlab.measures.support.golub_kahan import GolubKahan, Ritz, Vector, converge
from layerlab.measures.support.spectral_norms import (
    UNKNOWN,
    room_for_weights,
    weight_bytes,
    weight_products,
)
from layerlab.observe.architecture.effective_weights import effective_weights
from layerlab.observe.architecture.head_weights import matrices
from layerlab.observe.architecture.structure import ModelStructure
from layerlab.observe.tracing.host_steps import Steps, ask, run_steps, together
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden, Map
from layerlab.system.hardware import is_out_of_memory

COPIES = 8
"""Score-sized matrices that the graph of one block keeps: six at GPT-2, more with a softcap."""

FAILURES = (RuntimeError, TypeError, ValueError, AttributeError)
"""What a block without the derivative asked for raises: kernels and remote code differ."""


def local_lipschitz(
    rerun: Map,
    stream: Hidden,
    *,
    steps: int = 4,
    tolerance: float = 0.01,
    seed: int = 0,
) -> Ritz:
    """Return the largest singular value of a block's Jacobian at one input, all tokens together.

    local = max_D ||J D||_F / ||D||_F,   J D = d/dt f(X + t D) at t = 0

    1 is what the identity has: above it some change of the stream is amplified, below it every
    change shrinks. It is a lower bound after `steps` steps: at four, 0.84 to 1 of the converged
    value on the trained and untrained models it was tried on.

    Source: kim21, section 2; castin24; golub13, section 10.4.
    Differs: at this input and not over a set of inputs, hence no bound on larger changes.
    Unit: none.

    Args:
        rerun: the block as a function of its stream, at fixed positions and masks.
        steps: most products with J, and with its transpose.
        tolerance: the relative residual at which to stop early.
        seed: of the Gaussian first direction.

    Raises:
        NotApplicable: the block has no derivative, or none that is consistent.

    Example:
        >>> round(local_lipschitz(lambda x: 3 * x, torch.ones(4, 2)).value, 4)
        3.0
    """
    return run_steps(_approach(rerun, stream, _draw_start(stream, seed), steps, tolerance))


def _approach(
    rerun: Map, stream: Hidden, start: Vector, steps: int, tolerance: float
) -> Steps[Ritz]:
    """Find the largest singular value by the first kind of derivative that the block has."""
    reasons: list[str] = []
    for differential in (_reverse_twice, _forward_and_reverse):
        try:
            with _differentiable():
                products = differential(rerun, stream)
            forward, adjoint = (_flat(product, stream) for product in products)
            run = GolubKahan(forward, adjoint, start, steps=steps, tolerance=tolerance)
            yield from converge([run])
            return run.found
        except (*FAILURES, NotApplicable) as error:
            if is_out_of_memory(error):
                raise
            reasons.append((str(error).splitlines() or [type(error).__name__])[0])
    raise NotApplicable("; ".join(dict.fromkeys(reasons)))


@contextmanager
def _differentiable() -> Iterator[None]:
    """Allow derivatives: the fused kernels for attention have no forward-mode or second ones."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


def _draw_start(stream: Hidden, seed: int) -> Vector:
    """Return a direction that is the same on every device, drawn on the host."""
    noise = torch.Generator().manual_seed(seed)
    precision = torch.promote_types(stream.dtype, torch.float32)
    drawn = torch.randn(stream.numel(), generator=noise, dtype=torch.float64)
    return drawn.to(stream.device, precision)


def _reverse_twice(rerun: Map, stream: Hidden) -> tuple[Map, Map]:
    """Return J v as the derivative of the linear map u -> J^T u: one forward pass per product."""
    point = stream.detach().clone().requires_grad_(True)
    image = rerun(point)
    dual = torch.zeros_like(image, requires_grad=True)
    (pulled,) = torch.autograd.grad(image, point, dual, create_graph=True)
    return (
        lambda v: torch.autograd.grad(pulled, dual, v, retain_graph=True)[0],
        lambda u: torch.autograd.grad(image, point, u, retain_graph=True)[0],
    )


def _forward_and_reverse(rerun: Map, stream: Hidden) -> tuple[Map, Map]:
    """Return J v by forward mode, which runs the block anew each time.

    It serves blocks with one derivative.
    """
    point = stream.detach().clone().requires_grad_(True)
    image = rerun(point)
    return (
        lambda v: torch.func.jvp(rerun, (stream.detach(),), (v,))[1].detach(),
        lambda u: torch.autograd.grad(image, point, u, retain_graph=True)[0],
    )


def _flat(product: Map, like: Hidden) -> Map:
    """Return the same product on one long vector, in at least float32."""
    precision = torch.promote_types(like.dtype, torch.float32)

    def flat(vector: Tensor) -> Tensor:
        with _differentiable():
            made = product(vector.reshape(like.shape).to(like.dtype))
        return made.detach().flatten().to(precision)

    return flat


def _matrices(layer: Layer) -> dict[str, Tensor]:
    """Return the block's matrices and stacks of matrices, those kept off the device included."""
    if layer.weights is not None and layer.weights.matrices:
        return dict(layer.weights.matrices)
    return {
        name: tensor
        for name, get in effective_weights(layer.block or nn.Module()).items()
        if (tensor := get()) is not None and tensor.dim() > 1 and tensor.device.type != "meta"
    }


def _read_together(layer: Layer, run: MeasureContext) -> dict[int, Tensor]:
    """Return the products of a layer, and of those behind it whose matrices fit beside its own."""
    given = {layer.layer: _matrices(layer)}
    device = layer.stream.device
    room = room_for_weights(device) - weight_bytes(given[layer.layer])
    stack = getattr(run.subject, "stack", None)
    if room > 0 and isinstance(stack, ModelStructure) and not run.subject.offloaded:
        for number, block in list(enumerate(stack.blocks))[layer.layer + 1 :]:
            behind = matrices(block)
            room -= weight_bytes(behind)
            if not behind or room < 0 or any(one.device != device for one in behind.values()):
                break
            given[number] = behind
    return dict(zip(given, weight_products(list(given.values())), strict=True))


def _weights(layer: Layer, run: MeasureContext) -> Tensor:
    key = ("weights", layer.layer)
    if key not in run.memory:
        try:
            if packed := getattr(run.subject, "packed", None):
                raise NotApplicable(describe_packed(packed))
            for number, product in _read_together(layer, run).items():
                run.memory["weights", number] = product
        except NotApplicable as error:
            run.memory[key] = UNKNOWN
            remark = f"weights: not applicable to {{layers}}, because {error}"
            run.note_layer("weights", remark, layer.layer)
    found: Tensor = run.memory[key]
    return found


def _local(layer: Layer, run: MeasureContext) -> Steps[Ritz]:
    unknown = Ritz(value=nan, residual=nan, steps=0)
    if layer.layer == EMBEDDING:
        return unknown
    if layer.rerun is None or layer.entered is None:
        remark = "local: not measured in {layers}, as it cannot be run again by itself"
        run.note_layer("local", remark, layer.layer)
        return unknown
    options = dict(run.options)
    limit = options.pop("memory_gib")
    wanted = _memory_gib(layer)
    if wanted > limit:
        run.notes["local"] = (
            f"local: not measured in layer {layer.layer}: it would keep about {wanted:.0f} GiB of "
            f"attention derivatives, above memory_gib={limit}: give a shorter context or raise it"
        )
        return unknown
    try:
        start = _start(layer.entered, options.pop("seed"), run)
        return (yield from _approach(layer.rerun, layer.entered, start, **options))
    except NotApplicable as error:
        remark = f"local: not applicable to {{layers}}, because {error}"
        run.note_layer("local", remark, layer.layer)
        return unknown


def _start(stream: Hidden, seed: int, run: MeasureContext) -> Vector:
    """Return the first direction, drawn once for all layers in a row that are alike."""
    key = (stream.numel(), seed, stream.device, stream.dtype)
    if run.memory.get("start", (None,))[0] != key:
        run.memory["start"] = key, _draw_start(stream, seed)
    found: Vector = run.memory["start"][1]
    return found


def _memory_gib(layer: Layer) -> float:
    """Return the memory in GiB that the graph keeps of attention, whose scores it stores.

    A fused forward does not store them.
    """
    if layer.attention is None or layer.entered is None:
        return 0.0
    scores = layer.attention.heads * layer.attention.tokens * layer.attention.keys
    # Attention that stores its scores computes those of sixteen bits in float32.
    return COPIES * scores * max(layer.entered.element_size(), 4) / 2**30


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Read one row per block, and one for the embedding, which has a gradient only.

    Source: Own.
    """
    weights = UNKNOWN if layer.layer == EMBEDDING else _weights(layer, run)
    gradient = UNKNOWN if layer.gradient is None else layer.gradient.float().norm()
    local, (product, size) = run_steps(together(_local(layer, run), ask([weights, gradient])))
    yield {
        "sequence": layer.sequence,
        "layer": layer.layer,
        "local": local.value,
        "residual": local.residual,
        "weights": float(product),
        "gradient": float(size),
    }


MEASURES = (
    Measure(
        name="lipschitz",
        title="Local Lipschitz constant of the blocks",
        unit="none (local, weights); nats per unit of the features (gradient)",
        source="kim21, section 2; castin24; golub13, section 10.4",
        about=(
            "How much a small change of the stream grows while it passes one block, in the worst "
            "direction, at the input the model really had. "
            "A block far above its neighbours amplifies rounding errors and gradients."
        ),
        equation=(
            "local = ||J||_2,  J = d block(X) / d X;  weights = prod_W ||W||_2;  "
            "gradient = ||d loss / d X||_F"
        ),
        per=("sequence", "layer"),
        columns={
            "local": "largest singular value of the block's Jacobian at this input, from below; "
            "none for the embedding, since token ids cannot be changed a little",
            "residual": "how far `local` is from being a singular value, relative: 0 is converged",
            "weights": "product of the spectral norms of the block's weights; it bounds nothing",
            "gradient": "norm of d loss / d stream behind this layer",
        },
        plot=("local", "gradient", "weights"),
        better=None,
        needs=frozenset({"stream", "rerun", "gradient", "weights"}),
        resumes=True,
        read=read,
        **measure_options("lipschitz"),
    ),
)
