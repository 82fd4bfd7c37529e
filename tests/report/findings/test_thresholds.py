"""Rules speak beyond their thresholds, and not at them."""

from typing import Any

import numpy as np
import pytest

from layerlab.records.layer_names import EMBEDDING
from tests.report.findings.test_find import SPOT, change, find, names
from tests.report.support.reading import HEADS, LAYERS, WIDTH, card, content, frames

PLACE = {"layer": 3}
HEAD = {"layer": 3, "head": 2}
AS_RUN = {"format": "bf16", "mode": "as-run"}
UNIT = {"layer": 3, "matrix": "mlp.c_fc"}
# By rule: the readings that it looks at, what else is so there, its threshold, and the side of it.
LIMITS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], float, int]] = {
    "score": ("attention", SPOT, "logit_max", {}, 100.0, 1),
    "entropy": ("attention", SPOT, "entropy", {}, 0.05, -1),
    "sink": ("attention", SPOT, "sink_mass", {}, 0.8, 1),
    "ratio": ("spectrum", SPOT, "uniform_ratio", {}, 3.0, 1),
    "enclosure": ("spectrum", SPOT, "upper", {"lower": 100.0}, 101.0, 1),
    "idle": ("stream", PLACE, "ffn_share", {"attention_share": 0.001}, 0.01, -1),
    "collapse": ("diversity", PLACE, "relative_residual", {}, 0.1, -1),
    "cosine": ("diversity", {**PLACE, "place": "stream"}, "cosine", {}, 0.9, 1),
    "dimension": ("dimension", PLACE, "effective_dimension", {}, 0.05 * WIDTH, -1),
    "overflow": ("stream", PLACE, "largest", {}, 65504 / 2, 1),
    "kurtosis": ("stream", PLACE, "kurtosis", {}, WIDTH / 2, 1),
    "condition": ("querykey", HEAD, "condition", {}, 1e4, 1),
    "cancelling": ("querykey", HEAD, "abs_norm", {"norm": 2.0}, 4.0 * WIDTH / HEADS, 1),
    "answers": ("logits", AS_RUN, "changed", {}, 0.01, 1),
    "cause": ("attribution", {"part": "mlp.act", "format": "bf16"}, "share", {}, 0.25, 1),
    "predictor": ("rounding", {**PLACE, "format": "bf16"}, "predicted", {"mean": 1e-3}, 5e-4, -1),
    "spare": ("ablation", {**HEAD, "component": "head"}, "change", {}, 1e-3, -1),
    "steeptail": ("matrices", UNIT, "alpha", {"error": 0.5}, 7.0, 1),
    "heavytail": ("matrices", UNIT, "alpha", {"error": 0.25}, 1.5, -1),
    "deficient": ("matrices", UNIT, "rank", {"full_rank": 64}, 64, -1),
}


@pytest.mark.few(7)
@pytest.mark.parametrize("name", LIMITS)
def test_a_rule_speaks_beyond_its_threshold_and_not_at_it(name):
    frame, where, column, beside, limit, side = LIMITS[name]
    for value, spoken in ((limit, False), (limit * (1 + side * 1e-3), True)):
        tables = change(frames(), frame, where, **{column: value}, **beside)
        found = [one for one in find(content(), tables) if one.id.startswith(f"{name}-")]
        assert bool(found) == spoken, (value, [one.sentence for one in found])


# What a finding holds against what, where it is not the reading against its threshold.
HELD = {
    "enclosure": (0.212, 0.01),
    "predictor": (2.5, 2.0),
    "cancelling": (2.4 * WIDTH / HEADS, 2.0 * WIDTH / HEADS),
    "deficient": (64 * 0.8, 64.0),
    "steeptail": (7.0 * 1.2, 6.0),
    "heavytail": (1.5 * 0.8, 2.0),
    "dimension": (0.05 * WIDTH * 0.8, 0.05 * WIDTH),
}
ATTENTION = {"score", "entropy", "sink", "ratio", "condition", "cancelling"}
CHANNELS = {"collapse", "cosine", "dimension", "overflow", "kurtosis"}


@pytest.mark.few(7)
@pytest.mark.parametrize("name", [one for one in LIMITS if "layer" in LIMITS[one][1]])
def test_the_worst_of_several_places_is_named_with_its_number_and_its_picture(name):
    frame, where, column, beside, limit, side = LIMITS[name]
    tables = frames()
    for layer, share in ((2, 0.05), (3, 0.2), (4, 0.1)):
        readings = {column: limit * (1 + side * share), **beside}
        tables = change(tables, frame, {**where, "layer": layer}, **readings)
    (found,) = [one for one in find(content(), tables) if one.id.startswith(f"{name}-")]
    assert found.id == f"{name}-0"
    assert (found.value, found.threshold) == pytest.approx(
        HELD.get(name, (limit * (1 + side * 0.2), limit))
    )
    if name == "spare":  # of no head alone
        assert found.layer is None
        return
    assert (found.layer, found.head) == (3, where.get("head"))
    sequence = where.get("sequence", 0)
    picture = f"attention/healthy/{sequence}/3/2" if name in ATTENTION else None
    assert found.detail == (f"channels/healthy/{sequence}/3" if name in CHANNELS else picture)


@pytest.mark.parametrize("width", [19, 20])
def test_a_share_of_few_dimensions_is_not_judged(width):
    tables = change(frames(), "dimension", PLACE, effective_dimension=0.5)
    found = find(content(card(width=width)), tables)
    assert ("dimension" in names(found)) == (width == 20)
    assert not any("Massive" in one.advice for one in found if one.id == "dimension-0")


def test_too_few_tokens_are_held_against_those_that_it_takes():
    for tokens, few in ((4 * WIDTH - 1, True), (4 * WIDTH, False)):
        tables = change(frames(), "dimension", {}, tokens=tokens)
        found = [one for one in find(content(), tables) if one.measure == "dimension"]
        assert bool(found) == few
        for one in found:
            assert (one.id, one.relative) == ("dimension-tokens-0", True)
            assert (one.value, one.threshold) == (tokens, 4 * WIDTH)


@pytest.mark.parametrize(
    ("name", "where", "change_of", "given", "severity"),
    [
        ("growth", "stream", {"norm": 1.0}, {"layer": LAYERS - 1, "norm": 101.0}, "info"),
        ("growth", "stream", {"norm": 1.0}, {"layer": LAYERS - 1, "norm": 10_000.0}, "info"),
        ("growth", "stream", {"norm": 1.0}, {"layer": LAYERS - 1, "norm": 10_001.0}, "warning"),
        ("growth", "stream", {"norm": 1.0}, {"layer": LAYERS - 1, "norm": 100.0}, None),
        ("steep", "lipschitz", {"local": 1.0}, {"layer": 3, "local": 10.0}, None),
        ("steep", "lipschitz", {"local": 1.0}, {"layer": 3, "local": 10.1}, "warning"),
        ("gradient", "lipschitz", {"gradient": 1.0}, {"layer": 0, "gradient": 1e3}, None),
        ("gradient", "lipschitz", {"gradient": 1.0}, {"layer": 0, "gradient": 1001.0}, "warning"),
        ("gradient", "lipschitz", {"gradient": 1.0}, {"layer": 0, "gradient": 1e-3}, None),
        ("gradient", "lipschitz", {"gradient": 1.0}, {"layer": 0, "gradient": 9e-4}, "warning"),
    ],
)
def test_a_layer_is_held_against_another_or_all(name, where, change_of, given, severity):
    layer = {"layer": given["layer"]}
    readings = {key: one for key, one in given.items() if key != "layer"}
    tables = change(change(frames(), where, {}, **change_of), where, layer, **readings)
    found = {one.severity for one in find(content(), tables) if one.id.startswith(f"{name}-")}
    assert found == ({severity} if severity else set())


@pytest.mark.parametrize(
    ("changed", "kl", "severity"),
    [(0.02, 0.1, "info"), (0.05, 0.1, "info"), (0.051, 0.1, "warning"), (0.02, np.nan, "warning")],
)
def test_answers_are_graver_where_one_in_twenty_changes_or_a_format_overflows(
    changed, kl, severity
):
    tables = change(frames(), "logits", AS_RUN, changed=changed, kl=kl)
    (found,) = [one for one in find(content(), tables) if one.id.startswith("answers")]
    assert found.severity == severity
    assert found.threshold == (0.05 if changed > 0.05 else 0.01)
    assert ("KL and loss are not finite" in found.sentence) == np.isnan(kl)


@pytest.mark.parametrize(("width", "limit"), [(64, 32.0), (1000, 100.0), (None, 100.0)])
def test_a_kurtosis_is_held_against_the_width_where_that_is_small(width, limit):
    for value, spoken in ((limit, False), (limit + 0.1, True)):
        tables = change(frames(), "stream", PLACE, kurtosis=value)
        assert ("kurtosis" in names(find(content(card(width=width)), tables))) == spoken


def test_a_fall_is_told_only_of_a_curve_that_falls_by_half_in_every_layer():
    """Six layers and the embedding; the last is at a half of the first, or just above it."""
    layers = [EMBEDDING, *range(LAYERS)]
    for last, turned, spoken in ((0.4, False, True), (0.41, False, False), (0.4, True, False)):
        curve = np.linspace(0.8, last, len(layers))
        if turned:
            curve[2] = curve[1]
        tables = frames()
        for layer, one in zip(layers, curve.tolist(), strict=True):
            where = {"layer": layer, "place": "stream"}
            tables = change(tables, "diversity", where, relative_residual=one, cosine=0.5)
        found = [one for one in find(content(), tables) if one.id.startswith("collapse")]
        assert bool(found) == spoken
        for one in found:
            assert (one.value, one.threshold, one.layer) == (0.4, 0.4, LAYERS - 1)


@pytest.mark.parametrize(("last", "spoken"), [(1, False), (2, True)])
def test_a_fall_is_told_of_three_layers_at_least(last, spoken):
    tables = frames()
    for layer in range(EMBEDDING, last + 1):
        where = {"layer": layer, "place": "stream"}
        share = 0.9 * 0.5 ** (layer - EMBEDDING)
        tables = change(tables, "diversity", where, relative_residual=share, cosine=0.5)
    table = tables["diversity"]
    tables["diversity"] = table[table["layer"] <= last]
    assert ("collapse" in names(find(content(), tables))) == spoken
