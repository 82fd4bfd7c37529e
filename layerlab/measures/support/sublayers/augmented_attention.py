"""Attention with shortcuts beside it: what Theorems 4 and 6 bound it by, and whether it is that.

A model's own modules are held against the form that the theorems speak of, also where attention is
run on other features than those of the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.measures.support.golub_kahan import spectral_bounds
from layerlab.measures.support.sublayers.activations import ACTIVATIONS, Elementwise
from layerlab.measures.support.sublayers.sublayer_bounds import (
    Constants,
    attention_bound,
    contraction,
)
from layerlab.measures.support.sublayers.sublayer_forms import (
    ACTIVATED,
    ROWS,
    Linear,
    apply_linear,
    attention_fit,
    choose_loosest,
    find_underflow,
    measure_gap,
    rounding,
)
from layerlab.observe.architecture.effective_weights import linear_maps
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.device_schedule import read_host
from layerlab.observe.tracing.host_steps import run_steps
from layerlab.observe.tracing.records import Layer, Sublayer
from layerlab.shapes import Hidden, Scalar

OTHER = (
    "its shortcut is not the sum over paths of act(z Theta) or act(z W_down) W_up that Theorem 4 "
    "speaks of, at what attention reads"
)
WIDER = "attention gives features of another width than it reads"
APART = "no sum in the block shows that its shortcut joins the stream beside attention"


@dataclass(frozen=True, kw_only=True)
class Shortcut:
    """The form of a shortcut beside attention: the sum over its paths of act(z Theta) W.

    Attributes:
        paths: of each its matrix, and what follows the activation if anything does.
    """

    paths: tuple[tuple[Linear, ...], ...]
    activation: Elementwise

    def value(self, entered: Hidden) -> Hidden:
        """Return what the form gives, in float32."""
        return _follow(self.paths, entered.float(), self.activation.function)


def shortcut_bound(shortcut: Shortcut, entered: Hidden) -> Scalar:
    """Return how far a shortcut beside attention can scale diversity.

    sum over i of L ||Theta_i||_2,   with a bottleneck   sum over i of L ||W_down||_2 ||W_up||_2

    L is the slope of the activation; of one without a largest slope, that on the range of what
    enters.

    Source: pangu23, Theorem 4.
    Differs: the source has it for a square matrix, and builds a bottleneck.
    Unit: none.
    """
    norms = spectral_bounds([one.weight for path in shortcut.paths for one in path])
    left = iter(norms)
    total = torch.zeros((), dtype=torch.float64)
    for path in shortcut.paths:
        inner = entered.float() @ path[0].weight + path[0].bias
        size = torch.as_tensor(shortcut.activation.slope(inner))
        for _ in path:
            size = size * next(left)
        total = total.to(size) + size
    return total


def noise_bound(
    attention: Scalar, moved: Scalar, shortcut: Scalar, noise: Scalar, diverse: Scalar
) -> Scalar:
    """Return how much of a noise augmented attention can turn into diversity, over its norm.

    1 + sqrt(lambda_(A + delta) H) s v1 + L sum ||Theta_i||_2
      + sqrt(lambda_delta H) s v1 d_M(Z) / ||noise||_F

    Source: pangu23, Theorem 6.
    Differs: the source has it as a strict inequality, which active ReLUs attain.
    Unit: none.

    Args:
        attention: sqrt(lambda_(A + delta) H) s v1, of attention to what is noisy.
        moved: sqrt(lambda_delta H) s v1, of what the noise changes in attention.
        noise: its norm.
        diverse: d_M(Z).
    """
    return 1 + attention + shortcut + moved * diverse / noise


def bound_record(record: AttentionRecord, constants: Constants) -> Scalar:
    """Return sqrt(lambda H) s v1 of attention as it was on some features.

    Source: pangu23, Theorem 2.
    Unit: none.
    """
    assert constants.values is not None and constants.output is not None
    contractions = contraction(record, exact=True).to(constants.values)
    return attention_bound(contractions, constants.values, constants.output)[0]


def attend(layer: Layer, entered: Hidden) -> tuple[Hidden, AttentionRecord]:
    """Run a layer's attention on other features, and check that it is still the same form.

    Source: pangu23, Theorem 6.

    Raises:
        NotApplicable: it is not.
    """
    if layer.attend is None or layer.weights is None:
        raise NotApplicable("its attention cannot be run on other features")
    if bool(entered.any()) and (underflow := find_underflow(entered)):
        raise NotApplicable(underflow)
    left, record = layer.attend(entered)
    if left.shape != entered.shape:
        raise NotApplicable(WIDER)
    ran = Sublayer(entered=entered, left=left, branch=None)
    fit = run_steps(attention_fit(record, layer.weights, ran))
    if not fit.holds:
        raise NotApplicable(
            find_underflow(left)
            or "on other features its value path is not the linear map of Theorem 2"
        )
    return left, record


def find_shortcut(layer: Layer) -> Shortcut | None:
    """Return the form of a layer's shortcut, None where it has none.

    Source: pangu23, equations 4 and 5.

    Raises:
        NotApplicable: it is of another form, or is not seen to join the stream.
    """
    sublayer = layer.sublayers.get("shortcut")
    if sublayer is None:
        return None
    found = shortcut_fit(sublayer)
    if found is None:
        raise NotApplicable(OTHER)
    if sublayer.branch is None and bool(sublayer.left.any()):
        raise NotApplicable(APART)
    return found


def bound_change(before: AttentionRecord, after: AttentionRecord, constants: Constants) -> Scalar:
    """Return sqrt(lambda_delta H) s v1 for the change delta of attention, head by head.

    Source: pangu23, Lemma 3.
    Unit: none.
    """
    assert constants.values is not None and constants.output is not None
    norms = []
    for head in range(before.heads):
        one = slice(head, head + 1)
        matrices = [part.weights(one, dtype=torch.float64) for part in (after, before)]
        delta = matrices[0] - matrices[1]
        norms.append(torch.linalg.matrix_norm(delta - delta.mean(1, keepdim=True), 2))
    moved = torch.cat(norms).to(constants.values)
    return attention_bound(moved, constants.values, constants.output)[0]


def shortcut_fit(sublayer: Sublayer) -> Shortcut | None:
    """Return the form that gives the output of a shortcut beside attention, if any.

    Source: pangu23, equation 5 and section 4.1.
    """
    assert sublayer.joins is not None
    step = -(-len(sublayer.entered) // ROWS)
    entered, left = sublayer.entered[::step].float(), sublayer.left[::step].float()
    paths = _list_paths(sublayer.joins)
    if not paths or not all(_is_passed(entered, path, left) for path in paths):
        return None
    depth = sum(one.weight.shape[0] for one in paths[0])
    slack = min(rounding(sublayer.left.dtype, depth), ACTIVATED)
    sizes = []
    for one in ACTIVATIONS:
        gap = _follow(paths, entered, one.function) - left
        sizes.append(measure_gap(gap, _follow_noise(paths, entered, one), left))
    best = choose_loosest(ACTIVATIONS, read_host([torch.stack(sizes)])[0], slack)
    return None if best is None else Shortcut(paths=paths, activation=ACTIVATIONS[best])


def _list_paths(root: nn.Module) -> tuple[tuple[Linear, ...], ...]:
    """Return the linear maps of a shortcut, those of one parent as one path."""
    found: dict[str, list[Linear]] = {}
    for path, weight, bias in linear_maps(root):
        one = Linear(weight=weight.float().T, bias=0.0 if bias is None else bias.float())
        found.setdefault(path.rpartition(".")[0], []).append(one)
    return tuple(map(tuple, found.values()))


def _is_passed(entered: Hidden, path: Sequence[Linear], left: Hidden) -> bool:
    sizes = (entered.shape[1], *(side for one in path for side in one.weight.shape), left.shape[1])
    return len(path) in (1, 2) and sizes[0::2] == sizes[1::2]


def _follow(
    paths: Sequence[Sequence[Linear]], entered: Hidden, act: Callable[[Tensor], Tensor]
) -> Hidden:
    total = torch.zeros(())
    for first, *rest in paths:
        made = act(entered @ first.weight + first.bias)
        for one in rest:
            made = made @ one.weight + one.bias
        total = total.to(made) + made
    return total


def _follow_noise(
    paths: Sequence[Sequence[Linear]], entered: Hidden, activation: Elementwise
) -> Hidden:
    """Return the variance of the rounding of a sum of paths, in units of one rounding."""
    total = torch.zeros(())
    for first, *rest in paths:
        given, error = apply_linear(entered, first)
        made = activation.local_slope(given) ** 2 * error + activation.function(given).square()
        for one in rest:
            made = made @ one.weight.square()
        total = total.to(made) + made
    return total
