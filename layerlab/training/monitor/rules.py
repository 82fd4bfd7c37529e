"""Alarms from a loss, a gradient or a reading, before training fails.

A rule compares with a fixed limit where there is a reason for one, and else with the run's own
recent past. It speaks once, and again only after it was silent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log
from statistics import median
from sys import float_info
from typing import Any

from layerlab.records.layer_names import layer_name
from layerlab.training.monitor.alerts import Alert, Limits
from layerlab.training.monitor.readings import ReadingRow

GAUSSIAN = 1.4826
"""Standard deviations of Gaussian numbers in one median absolute deviation."""
FEW = 3
"""Losses; up to `least` a spike is above the largest, plus its absolute value, plus 1."""
CONSTANT = 0.01
"""A loss deviates by at least this share of its median: less is as good as constant."""
SKIPPED = 16
"""Updates without a finite gradient that a GradScaler may skip, which halves 2^16 each time."""
STEADY = 0.25
"""The logarithm of a norm deviates by at least this."""
LARGEST = log(float_info.max)

CALM = "lower the learning rate, lengthen the warm-up or clip the gradient harder"
BOUND = "put a norm on query and key, clip their weights or lower the learning rate"
FINITE = {
    "score": "an attention score",
    "stream_norm": "the residual stream",
    "querykey_norm": "a query or key weight",
}

# What is remembered by layer and head.
_PLACED = ("norms", "tops", "active")
Place = tuple[int | None, int | None]
Places = dict[Place, float]


@dataclass(frozen=True, kw_only=True)
class RuleViolation:
    """A rule that is broken at a place; of several, the one of most `badness` is reported."""

    rule: str
    measure: str
    location: Place = (None, None)
    value: float
    limit: float = inf
    fault: str
    advice: str
    badness: float = 0.0

    @property
    def key(self) -> str:
        return "/".join(map(str, (self.rule, *self.location)))

    def alarm(self, update: int, others: int) -> Alert:
        several = f" (and {others} more places)" if others else ""
        more = " (and 1 more place)" if others == 1 else several
        return Alert(
            update=update,
            layer=self.location[0],
            head=self.location[1],
            measure=self.measure,
            value=self.value,
            limit=self.limit,
            text=f"{self.fault}{more}: {self.advice}",
        )


@dataclass
class Rules:
    """Judges a run as it goes on; what it remembers is small and plain."""

    limits: Limits = field(default_factory=Limits)
    losses: list[float] = field(default_factory=list)
    norms: dict[str, list[float]] = field(default_factory=dict)
    tops: dict[str, list[float]] = field(default_factory=dict)
    active: dict[str, list[str]] = field(default_factory=dict)
    lost: int | None = None  # update since which the gradient's norm is not finite

    def state(self) -> dict[str, Any]:
        """Return the state of all rules, as JSON values."""
        places = {name: getattr(self, name) for name in _PLACED}
        return deepcopy({"losses": self.losses, "places": places, "lost": self.lost})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what was remembered.

        Of a state of layerlab 0.1, which counts layers from the embedding, the losses alone.
        """
        self.losses, self.lost = list(state["losses"]), state.get("lost")
        places = state.get("places", {})
        for name in _PLACED:
            setattr(self, name, {key: list(v) for key, v in places.get(name, {}).items()})

    def update(self, update: int, loss: float | None, norm: float | None) -> list[Alert]:
        """Judge the loss and gradient norm of an update, as far as they are given."""
        alarms = []
        if loss is not None:
            alarms += self._fresh("loss", update, self._loss(loss))
        if norm is not None:
            alarms += self._fresh("norm", update, self._norms({(None, None): norm}, "update"))
            alarms += self._fresh("lost", update, self._infinite_norm(update, norm))
        return alarms

    def reading(self, update: int, rows: Iterable[ReadingRow], norm_judged: bool) -> list[Alert]:
        """Judge what a reading shows.

        Args:
            norm_judged: whether the norm of the whole gradient is judged with every update.
        """
        by: dict[str, Places] = {}
        for layer, head, measure, value in rows:
            if not (norm_judged and measure == "gradient" and layer is None):
                by.setdefault(measure, {})[layer, head] = value
        found = [one for measure in FINITE for one in _infinite(measure, by.get(measure, {}))]
        found += self._scores(by.get("score", {}))
        found += self._sinks(by.get("sink_mass", {}))
        found += self._entropies(by.get("entropy", {}))
        found += self._residuals(by.get("relative_residual", {}))
        found += self._jumps("querykey_norm", "W_k^T W_q of", by.get("querykey_norm", {}))
        found += self._jumps("stream_norm", "the residual stream after", by.get("stream_norm", {}))
        gradients = by.get("gradient", {})
        found += self._norms(gradients, "reading")
        alarms = self._fresh("reading", update, found)
        if (None, None) in gradients:
            whole = gradients[None, None]
            alarms += self._fresh("lost", update, self._infinite_norm(update, whole))
        return alarms

    def _fresh(self, kind: str, update: int, found: Iterable[RuleViolation]) -> list[Alert]:
        """Return an alert for each rule that was not broken last time."""
        found = list(found)
        before = self.active.get(kind, [])
        self.active[kind] = [one.key for one in found]
        fresh = [one for one in found if one.key not in before]
        alarms = []
        for rule in dict.fromkeys(one.rule for one in fresh):
            same = [one for one in fresh if one.rule == rule]
            worst = max(same, key=lambda one: one.badness)
            alarms.append(worst.alarm(update, len(same) - 1))
        return alarms

    def _loss(self, loss: float) -> Iterator[RuleViolation]:
        if not isfinite(loss):
            yield RuleViolation(
                rule="finite loss",
                measure="loss",
                value=loss,
                fault=f"the loss is {loss:g}",
                advice=f"go back to a checkpoint, and {CALM}",
            )
            return
        limit, middle = self._usual()
        self._remember(self.losses, loss, self.limits.past)
        if loss > limit:
            yield RuleViolation(
                rule="loss spike",
                measure="loss",
                value=loss,
                limit=limit,
                fault=f"the loss rose to {loss:.4g}, its running median is {middle:.4g}",
                advice=f"if it does not fall again, {CALM}",
            )

    def _usual(self) -> tuple[float, float]:
        """Return the loss above which there is a spike, and the running median."""
        if len(self.losses) < FEW:
            return inf, inf
        middle = median(self.losses)
        if len(self.losses) < self.limits.least:
            largest = max(self.losses)
            return largest + abs(largest) + 1, middle
        apart = median(abs(one - middle) for one in self.losses)
        return middle + self.limits.spike * max(apart, CONSTANT * abs(middle)), middle

    def _norms(self, norms: Places, kind: str) -> Iterator[RuleViolation]:
        """Yield gradient norms whose logarithm is far above the running median."""
        least = self.limits.least if kind == "update" else self.limits.window
        for (layer, _), norm in norms.items():
            past = self.norms.setdefault(f"{kind}/{layer}", [])
            if not isfinite(norm) or norm <= 0:
                continue
            limit = inf
            if len(past) >= least:
                middle = median(past)
                apart = GAUSSIAN * median(abs(one - middle) for one in past)
                limit = exp(min(middle + self.limits.gradient * max(apart, STEADY), LARGEST))
            self._remember(past, log(norm), self.limits.past)
            if norm > limit:
                where = "" if layer is None else f" of {_place_name(layer, None)}"
                yield RuleViolation(
                    rule="gradient spike",
                    measure="gradient",
                    location=(layer, None),
                    value=norm,
                    limit=limit,
                    fault=f"the gradient{where} has norm {norm:.3g}, usual is {exp(middle):.3g}",
                    advice=CALM,
                    badness=norm / limit,
                )

    def _infinite_norm(self, update: int, norm: float) -> Iterator[RuleViolation]:
        """Yield a gradient that is not finite for longer than a scaler looks for its scale."""
        if isfinite(norm):
            self.lost = None
            return
        self.lost = update if self.lost is None else self.lost
        if update - self.lost >= SKIPPED:
            yield RuleViolation(
                rule="finite gradient",
                measure="gradient",
                value=norm,
                fault=f"the gradient's norm is {norm:g}, and was not finite since update "
                f"{self.lost}",
                advice=f"go back to a checkpoint before that, and {CALM}",
            )

    def _scores(self, scores: Places) -> Iterator[RuleViolation]:
        for (layer, head), score in scores.items():
            if isfinite(score) and score > self.limits.score:
                yield RuleViolation(
                    rule="score",
                    measure="score",
                    location=(layer, head),
                    value=score,
                    limit=self.limits.score,
                    fault=f"the largest score of {_place_name(layer, head)} is {score:.4g}, above "
                    f"{self.limits.score:g}",
                    advice=f"{BOUND}; in bfloat16, rounding alone moves its attention",
                    badness=score,
                )
        for (layer, head), score, past in self._topmost("score", scores):
            limit = max(self.limits.notable, 2 * min(past, default=inf))
            if self.limits.score >= score > limit:
                yield RuleViolation(
                    rule="doubled score",
                    measure="score",
                    location=(layer, head),
                    value=score,
                    limit=limit,
                    fault=f"the largest score of {_place_name(layer, head)} grew from "
                    f"{min(past):.4g} to {score:.4g} within {_readings(past)}",
                    advice=BOUND,
                    badness=score,
                )

    def _jumps(self, measure: str, what: str, values: Places) -> Iterator[RuleViolation]:
        """Yield readings far above their last ones while the loss does not fall."""
        losses = self.losses
        falls = len(losses) > 1 and losses[-1] <= median(losses)
        for (layer, head), value, past in self._topmost(measure, values):
            limit = self.limits.jump * median(past) if len(past) == self.limits.window else inf
            if value > limit and not falls:
                yield RuleViolation(
                    rule=f"{measure} jump",
                    measure=measure,
                    location=(layer, head),
                    value=value,
                    limit=limit,
                    fault=f"the norm of {what} {_place_name(layer, head)} rose to {value:.3g}, "
                    f"from {median(past):.3g} in the last {_readings(past)}",
                    advice=CALM,
                    badness=value / limit,
                )

    def _sinks(self, masses: Places) -> Iterator[RuleViolation]:
        for layer, least in _each(masses, min):
            if least > self.limits.sink:
                yield RuleViolation(
                    rule="sink",
                    measure="sink_mass",
                    location=(layer, None),
                    value=least,
                    limit=self.limits.sink,
                    fault=f"every head of layer {layer} gives {least:.3f} or more of its "
                    "attention to the first token",
                    advice=f"the layer reads nothing else; {BOUND}",
                    badness=least,
                )

    def _entropies(self, entropies: Places) -> Iterator[RuleViolation]:
        for layer, largest in _each(entropies, max):
            if largest < self.limits.entropy:
                yield RuleViolation(
                    rule="entropy",
                    measure="entropy",
                    location=(layer, None),
                    value=largest,
                    limit=self.limits.entropy,
                    fault=f"the attention entropy of layer {layer} has collapsed: at most "
                    f"{largest:.2g} of that of uniform attention, in every head",
                    advice=BOUND,
                    badness=-largest,
                )

    def _residuals(self, residuals: Places) -> Iterator[RuleViolation]:
        for (layer, _), residual in residuals.items():
            if residual < self.limits.residual:
                yield RuleViolation(
                    rule="residual",
                    measure="relative_residual",
                    location=(layer, None),
                    value=residual,
                    limit=self.limits.residual,
                    fault=f"after {_place_name(layer, None)} only {residual:.2g} of the stream "
                    "differs between tokens",
                    advice="strengthen the skip connections, or lower the learning rate",
                    badness=-residual,
                )

    def _topmost(self, measure: str, values: Places) -> Iterator[tuple[Place, float, list[float]]]:
        """Yield the largest head of each layer with its earlier readings."""
        for layer in dict.fromkeys(layer for layer, _ in values):
            location = max((one for one in values if one[0] == layer), key=lambda one: values[one])
            past = self.tops.setdefault(f"{measure}/{layer}", [])
            if isfinite(values[location]):
                yield location, values[location], list(past)
                self._remember(past, values[location], self.limits.window)

    @staticmethod
    def _remember(past: list[float], value: float, length: int) -> None:
        past.append(value)
        del past[:-length]


def _readings(past: Sequence[float]) -> str:
    return "one reading" if len(past) == 1 else f"{len(past)} readings"


def _infinite(measure: str, values: Places) -> Iterator[RuleViolation]:
    for location, value in values.items():
        if not isfinite(value):
            yield RuleViolation(
                rule=f"finite {measure}",
                measure=measure,
                location=location,
                value=value,
                fault=f"{FINITE[measure]} is not finite in {_place_name(*location)}",
                advice=f"go back to a checkpoint, and {CALM}",
            )


def _each(values: Places, pick: Any) -> Iterator[tuple[int | None, float]]:
    """Yield one value for each layer."""
    for layer in dict.fromkeys(layer for layer, _ in values):
        yield layer, pick(value for location, value in values.items() if location[0] == layer)


def _place_name(layer: int | None, head: int | None) -> str:
    if layer is None:
        return "the model"
    return layer_name(layer) if head is None else f"layer {layer}, head {head}"
