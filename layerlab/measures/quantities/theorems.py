"""PanGu-pi's own modules beside the theorems on them: what is bounded, and what happens.

Theorem 4 speaks of attention with shortcuts beside it, MSA(Z) + Z + sum over i of T_i(Z), Theorem 6
of what noise does to that, Theorem 7 of a feed-forward layer with a series of activations, Theorems
8 and 9 of a stack of both. They are formed here from the model's own modules as they compute, at
what these read; whether a module is what its theorem speaks of is found by computing it again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import Any

import torch
from torch import nn

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.measures.measure import Bound, Measure, MeasureContext, ModelContext, Row
from layerlab.measures.quantities.diversity import diversity
from layerlab.measures.support.centring import precise
from layerlab.measures.support.sublayers.activations import list_series
from layerlab.measures.support.sublayers.augmented_attention import (
    WIDER,
    Shortcut,
    attend,
    bound_change,
    bound_record,
    find_shortcut,
    noise_bound,
    shortcut_bound,
)
from layerlab.measures.support.sublayers.sublayer_bounds import (
    Constants,
    certify_constants,
    feedforward_bound,
)
from layerlab.measures.support.sublayers.sublayer_forms import rounding
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden

SEED = 0
NEITHER = (
    "no block shows a shortcut with matrices beside attention, or a series of scaled and shifted "
    "activations in its feed-forward; Theorems 2 and 3 are under gain"
)
FORMED = (
    "The rows form what the theorems speak of from the model's own modules, at what each of them "
    "reads. A plain shortcut around the feed-forward, as models have it, is no part of Theorems 7 "
    "to 9."
)
NORMED = (
    "Norms stand before the modules, so the model's own plain shortcut carries another stream "
    "than attention reads; Theorems 4, 6 and 9 have one stream for both, and so have these rows."
)


@dataclass(kw_only=True)
class _Stack:
    """The sublayers of a model in a row, without norms, as Theorems 8 and 9 have them.

    Attributes:
        start: the diversity that goes in.
        bound: on what comes out, over that.
        error: what rounding may have moved the diversity by.
    """

    z: Hidden
    start: float
    bound: float = 1.0
    error: float = 0.0
    gated: bool = False

    def pass_on(self, left: Hidden, factor: float) -> None:
        """Go on with what a sublayer gave."""
        tokens, width = self.z.shape
        longest = float(precise(self.z).norm(dim=1).max())
        slack = rounding(left.dtype, 2 * width + tokens)
        size = float(precise(left).norm())
        self.error = factor * self.error + slack * (factor * sqrt(tokens) * longest + size)
        self.bound, self.z = self.bound * factor, left


@dataclass(kw_only=True)
class _TheoremRows:
    """State kept between the layers of one sequence."""

    run: MeasureContext
    rows: list[Row] = field(default_factory=list)
    stacks: dict[str, _Stack] = field(default_factory=dict)
    found: bool = False
    normed: bool = False

    def refuse(self, name: str, reason: object, layer: int) -> None:
        remark = f"{name}: not applicable to {{layers}}, because {reason}"
        self.run.note_layer(name, remark, layer)

    def add(self, layer: int, statement: str, values: Mapping[str, Any]) -> None:
        row = {key: nan for key in ("attention", "shortcut")} | dict(values)
        slack = row.pop("slack")
        row["tightness"] = row["bound"] / row["measured"] if row["measured"] > 0 else nan
        row["violated"] = row["measured"] > row["bound"] + slack
        self.rows.append({"layer": layer, "statement": statement, **row})


def _slack(entered: Hidden, left: Hidden, factor: float, over: float) -> float:
    """Return the part of a measured ratio that rounding alone can make."""
    tokens, width = entered.shape
    longest = float(precise(entered).norm(dim=1).max())
    reach = factor * sqrt(tokens) * longest + float(precise(left).norm())
    return rounding(left.dtype, 2 * width + tokens) * reach / over if over > 0 else inf


def _add_augmented(
    layer: Layer, constants: Constants, shortcut: Shortcut, found: _TheoremRows
) -> None:
    """Add the rows of Theorems 4 and 6."""
    attention, beside = layer.sublayers["attention"], layer.sublayers["shortcut"]
    assert layer.attention is not None
    u = attention.entered
    if u.shape != attention.left.shape:
        raise NotApplicable(WIDER)
    weights = bound_record(layer.attention, constants)
    passed = shortcut_bound(shortcut, u)
    left = precise(attention.left) + precise(u) + precise(beside.left)
    diverse = float(diversity(u))
    bound = float(weights) + 1 + float(passed)
    found.add(
        layer.layer,
        "Theorem 4",
        {
            "measured": float(diversity(left)) / diverse if diverse > 0 else nan,
            "bound": bound,
            "attention": float(weights),
            "shortcut": float(passed),
            "slack": _slack(u, attention.left, bound, diverse),
        },
    )
    if not diverse > 0:
        return
    generator = torch.Generator().manual_seed(SEED + layer.layer)
    drawn = torch.randn(u.shape, generator=generator)
    drawn = drawn - drawn.mean(0)
    size = found.run.options["noise"] * diverse / float(drawn.norm())
    noisy = (u.float() + size * drawn.to(u.device)).to(u.dtype)
    noise = precise(noisy) - precise(u)
    answered, record = attend(layer, noisy)
    change = precise(shortcut.value(noisy)) - precise(shortcut.value(u))
    change = change + noise + precise(answered) - precise(attention.left)
    both = torch.cat([u, noisy])
    passed, weights = shortcut_bound(shortcut, both), bound_record(record, constants)
    moved = bound_change(layer.attention, record, constants)
    norm = float(noise.norm())
    bound = float(noise_bound(weights, moved, passed, noise.norm(), diversity(u)))
    found.add(
        layer.layer,
        "Theorem 6",
        {
            "measured": float(diversity(change)) / norm,
            "bound": bound,
            "attention": float(weights),
            "shortcut": float(passed),
            "slack": 2 * _slack(noisy, answered, bound, norm),
        },
    )


def _add_series(layer: Layer, constants: Constants, found: _TheoremRows) -> None:
    """Add the row of Theorem 7, for a feed-forward layer with a series."""
    assert constants.form is not None
    sublayer = layer.sublayers["ffn"]
    bound = float(feedforward_bound(layer, constants, sublayer.entered))
    diverse = float(diversity(sublayer.entered))
    found.add(
        layer.layer,
        "Theorem 7" if constants.form.has_constant else "Theorem 7, gated",
        {
            "measured": float(diversity(sublayer.left)) / diverse if diverse > 0 else nan,
            "bound": bound,
            "slack": _slack(sublayer.entered, sublayer.left, bound, diverse),
        },
    )


def _add_stacks(
    layer: Layer,
    attention: Constants,
    feedforward: Constants,
    shortcut: Shortcut | None,
    found: _TheoremRows,
) -> None:
    """Carry the stacks of Theorems 8 and 9 through a layer, and add a row for each."""
    form, block = feedforward.form, layer.block
    assert form is not None and block is not None
    for name, stack in list(found.stacks.items()):
        z, augmented = stack.z, name == "Theorem 9"
        try:
            left, record = attend(layer, z)
            factor = float(bound_record(record, attention))
            if augmented:
                left = left + z
                factor += 1
            if augmented and shortcut is not None:
                left = left + shortcut.value(z).to(z.dtype)
                factor += float(shortcut_bound(shortcut, z))
            stack.pass_on(left, factor)
            factor = float(feedforward_bound(layer, feedforward, stack.z))
            stack.pass_on(form.value(block, stack.z).to(z.dtype), factor)
            stack.gated = stack.gated or not form.has_constant
            if not bool(stack.z.isfinite().all()):
                raise NotApplicable("the stack has left the range of its numbers")
        except NotApplicable as reason:
            del found.stacks[name]
            found.refuse(name, reason, layer.layer)
            continue
        found.add(
            layer.layer,
            f"{name}, gated" if stack.gated else name,
            {
                "measured": float(diversity(stack.z)) / stack.start,
                "bound": stack.bound,
                "slack": stack.error / stack.start,
            },
        )


def _take(constants: Constants) -> Constants:
    if constants.refused is not None:
        raise NotApplicable(constants.refused)
    return constants


def _read_layer(layer: Layer, found: _TheoremRows) -> None:
    """Add the rows of one layer, or say why there are none."""
    kept: dict[str, Any] = {"attention": None, "shortcut": None, "ffn": None}
    constants = certify_constants(
        layer, [one for one in ("attention", "ffn") if one in layer.sublayers]
    )
    tried = {
        "attention": lambda: _take(constants["attention"]),
        "shortcut": lambda: find_shortcut(layer),
        "ffn": lambda: _take(constants["ffn"]),
    }
    complete = True
    for name, find in tried.items():
        try:
            kept[name] = find()
        except KeyError:
            complete = False
            found.refuse(name, "the block does not expose it as a module of its own", layer.layer)
        except NotApplicable as reason:
            complete = False
            found.refuse(name, reason, layer.layer)
    attention, shortcut, feedforward = kept.values()
    if "attention" in layer.sublayers and layer.entered is not None:
        read = layer.sublayers["attention"].entered
        found.normed = found.normed or not torch.equal(read, layer.entered)
    series = feedforward is not None and feedforward.form.is_series
    found.found = found.found or series or "shortcut" in layer.sublayers
    try:
        if attention is not None and shortcut is not None:
            _add_augmented(layer, attention, shortcut, found)
        if series:
            _add_series(layer, feedforward, found)
        if complete:
            _add_stacks(layer, attention, feedforward, shortcut, found)
    except NotApplicable as reason:
        complete = False
        found.refuse("other features", reason, layer.layer)
    if not complete:
        found.stacks.clear()


def read(context: ModelContext, run: MeasureContext) -> Iterator[Row]:
    """Read the rows of all layers on the beginning of the first text.

    Source: pangu23, Theorems 4 and 6 to 9.

    Raises:
        NotApplicable: no block has such a module, or there are not two tokens.
    """
    tokens = context.sequences[0][: run.options["tokens"]]
    if len(tokens) < 2:
        raise NotApplicable("one token has no diversity")
    found = _TheoremRows(run=run)
    blocks = context.subject.stack.blocks
    context.begin(len(blocks) + 1)

    def keep(layer: Layer) -> None:
        context.step(f"layer {layer.layer}: theorems")
        if layer.layer == EMBEDDING:
            start = float(diversity(layer.stream))
            if start > 0:
                for name in ("Theorem 8", "Theorem 9"):
                    found.stacks[name] = _Stack(z=layer.stream, start=start)
            return
        _read_layer(layer, found)

    context.trace(tokens, keep)
    if not found.found:
        raise NotApplicable(NEITHER)
    if found.rows:
        run.notes["formed"] = FORMED
    if found.rows and found.normed:
        run.notes["normed"] = NORMED
    yield from found.rows


def _refuse(subject: Any) -> str | None:
    """Return why no theorem speaks of a model, as far as its modules show it without a text."""
    if isinstance(subject.stack, str):
        return None
    if subject.device.type == "mps":
        return "its device has no numbers of 64 bits; type --device cpu"
    outer = {part.outer for part in subject.stack.attentions}
    for block in subject.stack.blocks:
        heavy = [
            child
            for child in block.children()
            if child not in outer and any(one.dim() > 1 for one in child.parameters())
        ]
        beside = len(heavy) > 1 and not all(isinstance(one, nn.Linear) for one in heavy)
        if beside or list_series(block):
            return None
    return NEITHER


MEASURES = (
    Measure(
        name="theorems",
        title="PanGu-pi's theorems on its own modules",
        unit="none",
        source="pangu23, Theorems 4 and 6 to 9; gated feed-forward: Own",
        about=(
            "For attention with shortcuts, and a feed-forward layer with a series of activations: "
            "by which factor each changes the distance of its tokens from being all alike, beside "
            "what its theorem allows. "
            "A bound above 1 does not keep tokens apart: it only allows that they are."
        ),
        equation=(
            "4: d_M(MSA(Z) + Z + sum T_i(Z)) / d_M(Z) <= sqrt(lambda H) s v1 + 1 + L sum "
            "||Theta_i||;  6: the same of the change by a noise, over its norm;  7: d_M(FFN(Z)) / "
            "d_M(Z) <= max_c (sum_i |a_ic|) L s v2;  8, 9: d_M(Z_l) / d_M(Z_0) <= product"
        ),
        per=("layer", "statement"),
        columns={
            "measured": "the distance from equal tokens behind the module over that before it; of "
            "Theorem 6 what a noise makes of it over the noise's norm; of 8 and 9 behind all "
            "sublayers up to here, one behind the other without norms, over that before the first",
            "bound": "what the theorem allows; where the feed-forward is gated, with what its "
            "weights allow on the range that the gate takes",
            "attention": "the part of attention in the bound, sqrt(lambda H) s v1",
            "shortcut": "the part of the shortcuts in the bound, L sum ||Theta_i||",
            "tightness": "bound over measured; far above 1 the bound says little",
            "violated": "whether a bound is exceeded by more than rounding explains",
        },
        plot=("measured", "tightness", "attention", "shortcut"),
        roles={"violated": "flag"},
        better=None,
        needs=frozenset({"model", "attention"}),
        resumes=True,
        read=read,
        applies=_refuse,
        bound=(
            Bound(
                column="measured",
                limit="bound",
                side="upper",
                source="pangu23, Theorems 4 and 6 to 9; gated: Own",
            ),
        ),
        **measure_options("theorems"),
        rare=True,
        use=(
            "One more pass over the first tokens of the first text (`tokens=64`), in which each "
            "attention runs four times. `noise=0.1` is the norm of the noise of Theorem 6, over "
            "the diversity of what attention reads. Theorem 8 is the stack without any shortcut, "
            "Theorem 9 with the plain one and the augmented; a series has the sum of its slopes "
            "in both."
        ),
    ),
)
