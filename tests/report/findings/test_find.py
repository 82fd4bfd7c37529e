import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings import find as all_findings
from layerlab.report.findings.attention import SCORE, SCORE_DIVERGED
from layerlab.report.findings.find import RULES, Finding, exceeds, worst
from layerlab.report.findings.rule import SEVERITIES
from layerlab.report.results.source_notes import notes
from tests.report.support.reading import HEADS, LAYERS, TOKENS, WIDTH, card, content, frames

Frames = dict[str, pd.DataFrame]


def change(tables: Frames, frame: str, where: dict[str, Any], **columns: Any) -> Frames:
    """The same tables with other readings where `where` holds."""
    table = tables[frame].copy()
    rows = np.ones(len(table), dtype=bool)
    for name, wanted in where.items():
        rows &= table[name].isin(wanted if isinstance(wanted, list) else [wanted]).to_numpy()
    assert rows.any(), "the case must change something"
    for name, reading in columns.items():
        table[name] = table[name].astype(object)
        table.loc[rows, name] = reading
        table[name] = pd.to_numeric(table[name].astype(float))
    return {**tables, frame: table}


WORSE = {"mean": 9e-3, "predicted": 9e-3}
SPOT = {"sequence": 1, "layer": 3, "head": 2}
SICK: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "score": ("attention", SPOT, {"logit_max": 131.0}, "warning"),
    "entropy": ("attention", {"layer": 3}, {"entropy": 0.01, "sink_mass": 0.1}, "warning"),
    "sink": ("attention", SPOT, {"sink_mass": 0.97}, "info"),
    "ratio": ("spectrum", SPOT, {"uniform_ratio": 5.0}, "info"),
    "enclosure": ("spectrum", SPOT, {"upper": 3.0}, "info"),
    "bound": ("spectrum", SPOT, {"norm": 9.0}, "error"),
    "steep": ("lipschitz", {"layer": 3}, {"local": 90.0}, "warning"),
    "gradient": ("lipschitz", {"layer": LAYERS - 1}, {"gradient": 1e-6}, "warning"),
    "growth": ("stream", {"layer": LAYERS - 1}, {"norm": 900.0}, "info"),
    "idle": ("stream", {"layer": 3}, {"attention_share": 1e-3, "ffn_share": 2e-3}, "info"),
    "collapse": ("diversity", {"layer": 3}, {"relative_residual": 0.02}, "warning"),
    "cosine": ("diversity", {"layer": 3, "place": "stream"}, {"cosine": 0.95}, "info"),
    "dimension": ("dimension", {"layer": 3}, {"effective_dimension": 2}, "info"),
    "overflow": ("stream", {"layer": 3}, {"largest": 5e4}, "warning"),
    "kurtosis": ("stream", {"layer": 3}, {"kurtosis": 40.0}, "warning"),
    "massive": ("stream", {"layer": 3}, {"massive": 2, "largest": 2500.0}, "info"),
    "cancelling": ("querykey", {"layer": 3, "head": 2}, {"abs_norm": 90.0}, "info"),
    "condition": ("querykey", {"layer": 3, "head": 2}, {"condition": 3e6}, "info"),
    "unfinite": ("rounding", {"layer": 3, "format": "fp16"}, {"mean": np.inf}, "warning"),
    "answers": ("logits", {"format": "bf16", "mode": "as-run"}, {"changed": 0.3}, "warning"),
    "cause": ("attribution", {"part": "mlp.act", "format": "bf16"}, {"share": 0.6}, "info"),
    "islands": ("logits", {"format": "fp16", "mode": "flat"}, {"error": 2e-3}, "info"),
    "amplifier": ("rounding", {"layer": LAYERS - 1, "format": "bf16"}, WORSE, "info"),
    "scores": ("attribution", {"part": "attn:scores"}, {"share": 0.01}, "info"),
    "lookback": (
        "saliency",
        {"layer": EMBEDDING, "position": 3},
        {"l1": 4.0, "earlier": 1.0},
        "info",
    ),
    "vital": ("ablation", {"layer": 3, "component": "ffn"}, {"change": 0.9}, "info"),
    "harmful": (
        "ablation",
        {"layer": 3, "component": "head", "head": 2},
        {"change": -0.04, "error": 0.002},
        "info",
    ),
    "spare": ("ablation", {"component": "head"}, {"change": 2e-4}, "info"),
    "steeptail": ("matrices", {"layer": 3, "matrix": "mlp.c_fc"}, {"alpha": 7.5}, "info"),
    "heavytail": ("matrices", {"layer": 3, "matrix": "mlp.c_fc"}, {"alpha": 1.2}, "info"),
    "deficient": ("matrices", {"layer": 3, "matrix": "mlp.c_fc"}, {"rank": 8}, "info"),
    "dead": ("matrices", {"layer": 3, "matrix": "mlp.c_fc"}, {"dead_rows": 5}, "warning"),
    "predictor": ("rounding", {"layer": 3, "format": "bf16"}, {"predicted": 1e-4}, "info"),
}


def names(findings: list[Finding]) -> set[str]:
    return {finding.id.split("-")[0] for finding in findings}


def find(report: Any, tables: Any) -> list[Finding]:
    """The findings that a rule crossed a threshold for."""
    return [one for one in all_findings.find(report, tables) if not one.id.startswith("nearest")]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, [finding.sentence for finding in findings]
    return findings[0]


@cache
def diagnosed(name: str) -> tuple[Finding, ...]:
    """All findings of a case of `SICK`: they are frozen, and many tests look at the same ones."""
    frame, where, readings, _ = SICK[name]
    return tuple(find(content(), change(frames(), frame, where, **readings)))


def sick(name: str) -> Finding:
    return only([one for one in diagnosed(name) if one.id.startswith(name)])


def test_a_healthy_model_gives_no_finding():
    assert find(content(), frames()) == []


def test_every_rule_has_a_case_here():
    assert {rule.name for rule in RULES} == {*SICK, "nonfinite", "guess", "swapped", "changed"}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SICK)
def test_a_rule_fires_on_its_own_sickness_and_no_other_rule_does(name):
    found, severity = [*diagnosed(name)], SICK[name][-1]
    allowed = {"ratio": {"bound"}, "bound": {"enclosure"}}.get(name, set())
    assert name in names(found)
    assert names(found) - {name} <= allowed
    assert sick(name).severity == severity


@pytest.mark.few(8)
@pytest.mark.parametrize("name", SICK)
def test_a_finding_names_its_place_number_threshold_and_source(name):
    finding = sick(name)
    assert finding.layer == SICK[name][1].get("layer") or name == "gradient"
    if "head" in SICK[name][1]:
        assert finding.head == 2
    assert finding.value is not None and finding.threshold is not None
    assert finding.source and finding.advice.endswith(".")
    assert finding.sentence[0].isupper() and "nan" not in finding.sentence


def test_the_sentence_is_the_one_that_was_promised():
    finding = sick("score")
    assert finding.sentence.startswith("Layer 3 head 2: largest attention score 131, above 100")
    assert "fp16 overflows at 65,504" in finding.advice and "QK-clip" in finding.advice
    assert finding.source.startswith("kimi25")
    assert finding.wanted == ("attention", "healthy", 1, 3, 2)
    assert finding.detail == "attention/healthy/1/3/2"


def test_a_layer_finding_asks_for_the_channels_of_its_sequence():
    tables = change(frames(), "stream", {"layer": 3, "sequence": 1}, massive=1, largest=300.0)
    finding = only(find(content(), tables))
    assert finding.wanted == ("channels", "healthy", 1, 3)
    assert finding.detail == "channels/healthy/1/3"


@pytest.mark.parametrize(
    ("score", "severity"),
    [(SCORE, None), (101.0, "warning"), (SCORE_DIVERGED, "error"), (math.inf, "error")],
)
def test_a_score_is_graver_the_larger_it_is(score, severity):
    found = find(content(), change(frames(), "attention", SPOT, logit_max=score))
    assert worst(found) == severity


def test_a_capped_score_is_a_remark_only():
    tables = change(frames(), "attention", SPOT, logit_max=131.0)
    assert only(find(content(card(softcap=50.0)), tables)).severity == "info"


def test_many_places_are_one_finding_that_counts_the_others():
    tables = change(frames(), "attention", {"layer": [2, 3, 5]}, logit_max=120.0)
    tables = change(tables, "attention", SPOT, logit_max=131.0)
    finding = only(find(content(), tables))
    assert finding.layer == 3 and finding.value == 131.0
    assert f"and {3 * HEADS - 1} more heads in layers 2-3, 5" in finding.sentence


@pytest.mark.full
def test_each_model_has_its_own_finding():
    tables = frames("a", "b", "c")
    tables = change(tables, "attention", {"model": ["a", "c"], "layer": 1}, logit_max=500.0)
    found = find(content(card("a"), card("b"), card("c")), tables)
    assert [finding.model for finding in found] == ["a", "c"]
    assert len({finding.id for finding in found}) == 2


def test_findings_are_ranked_by_severity():
    tables = frames()
    for frame, where, readings, _ in SICK.values():
        tables = change(tables, frame, where, **readings)
    ranks = [SEVERITIES.index(finding.severity) for finding in find(content(), tables)]
    assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2}


def test_numbers_that_are_none_are_an_error_with_their_layer():
    faults = [
        {"kind": "weights", "layer": 4, "name": "h.4.mlp", "what": "9 Inf of 100"},
        {"kind": "weights", "layer": 3, "name": "h.3.attn", "what": "3 NaN of 9216"},
        {"kind": "stream", "layer": 3, "name": "block 3", "what": "5 NaN of 64"},
    ]
    weights, stream = find(content(card(faults=faults)), frames())
    assert weights.sentence == "Layer 3: h.3.attn holds 3 NaN of 9216, and so it is with 1 more"
    assert (weights.severity, weights.layer, stream.layer) == ("error", 3, 3)
    assert "float32" in stream.advice


def test_a_fault_outside_the_layers_has_no_layer():
    faults = [{"kind": "weights", "layer": None, "name": "wte", "what": "1 NaN of 4"}]
    finding = only(find(content(card(faults=faults)), frames()))
    assert finding.layer is None and finding.sentence == "Outside the layers: wte holds 1 NaN of 4"


@pytest.mark.parametrize(("reached", "word"), [(True, "no reading"), (False, "stayed finite")])
def test_a_broken_weight_says_whether_it_reached_the_stream(reached, word):
    faults = [{"kind": "weights", "layer": 2, "name": "w", "what": "1 NaN of 4"}]
    faults += [{"kind": "stream", "layer": 2, "name": "s", "what": "1 NaN of 4"}] * reached
    first = find(content(card(faults=faults)), frames())[0]
    assert word in first.advice


@pytest.mark.parametrize("loss", [math.log(512), 8.0])
def test_a_model_that_only_guesses_is_told_apart(loss):
    assert "guessing" in only(find(content(card(loss_nats=loss)), frames())).sentence


@pytest.mark.parametrize("loss", [None, math.nan, 6.2])
def test_a_loss_that_says_nothing_gives_no_finding(loss):
    assert find(content(card(loss_nats=loss)), frames()) == []


def test_readings_that_do_not_exist_give_no_finding():
    tables = frames()
    for name, frame in tables.items():
        numbers = frame.select_dtypes("number").columns.difference(["sequence", "layer", "head"])
        tables[name] = frame.astype(dict.fromkeys(numbers, "float64"))
        tables[name][list(numbers)] = np.nan
    assert find(content(), tables) == []


def test_a_model_without_any_frame_gives_no_finding():
    assert find(content(), {}) == []
    assert find(content(), {name: frame.iloc[:0] for name, frame in frames().items()}) == []


def test_tables_of_plain_objects_are_read_as_numbers():
    tables = {name: frame.astype(object) for name, frame in frames().items()}
    tables["gain"].loc[0, "violated"] = None
    tables["attention"].loc[:, "entropy"] = None
    tables["attention"].loc[5, "logit_max"] = 131
    tables["spectrum"] = pd.DataFrame([], columns=tables["spectrum"].columns)
    assert names(find(content(), tables)) == {"score"}
    assert notes(tables, [card()])


@pytest.mark.full
def test_a_sharp_head_is_a_remark_and_a_sharp_layer_a_warning():
    assert sick("entropy").severity == "warning"
    finding = only(find(content(), change(frames(), "attention", SPOT, entropy=0.001)))
    assert finding.severity == "info" and "olsson22" in finding.advice


def test_sharpness_that_a_sink_explains_is_no_collapse():
    tables = change(frames(), "attention", {"layer": 3}, entropy=0.06, sink_mass=0.95)
    assert names(find(content(), tables)) == {"sink"}


def test_sinks_of_very_short_texts_are_not_judged():
    tables = change(frames(), "attention", {"layer": 3}, sink_mass=0.95)
    assert "sink" in names(find(content(), tables))
    assert "sink" not in names(find(content(tokens=8), tables))


@pytest.mark.full
def test_a_bound_within_rounding_is_not_violated():
    norm = frames()["spectrum"].query("sequence == 1 and layer == 3 and head == 2")
    limit = float(norm["column_bound"].iloc[0])
    rounded = change(frames(), "spectrum", SPOT, norm=limit * (1 + 2.0**-20))
    assert "bound" not in names(find(content(), rounded))
    beyond = change(frames(), "spectrum", SPOT, norm=limit * 1.01)
    assert "bound" in names(find(content(), beyond))
    assert "bound" not in names(find(content(card(dtype="bfloat16")), beyond))


def test_a_lower_bound_is_violated_from_below():
    tables = change(frames(), "spectrum", SPOT, norm=0.5)
    finding = only(find(content(), tables))
    assert "below its lower bound" in finding.sentence and finding.source == "golub13"


def test_a_violated_gain_names_the_sublayer():
    where = {"sequence": 0, "layer": 2, "sublayer": "attention"}
    exceeded = change(frames(), "gain", where, bound=0.1)
    assert find(content(), exceeded) == [], "the measure itself calls it rounding"
    finding = only(find(content(), change(exceeded, "gain", where, violated=1)))
    assert "gain measured (attention)" in finding.sentence and finding.measure == "gain"


def test_a_vacuous_bound_gives_no_finding():
    tables = change(frames(), "querykey", {}, prenorm_bound=math.sqrt(TOKENS))
    tables = change(tables, "gain", {"sublayer": "attention"}, bound=1e30, tightness=1e30)
    assert find(content(), tables) == []


def test_a_steep_first_block_is_expected():
    tables = change(frames(), "lipschitz", {"layer": 0}, local=90.0)
    assert only(find(content(), tables)).severity == "info"


def test_gradients_explode_or_vanish():
    assert "explodes" in sick("gradient").sentence
    tables = change(frames(), "lipschitz", {"layer": 0}, gradient=1e-7)
    assert "vanishes" in only(find(content(), tables)).sentence


def test_features_that_become_alike_in_every_layer_are_remarked():
    tables = frames()
    for layer in range(EMBEDDING, LAYERS):
        tables = change(
            tables,
            "diversity",
            {"layer": layer},
            relative_residual=0.9 * 0.75 ** (layer + 1),
            cosine=0.5,
        )
    finding = only(find(content(), tables))
    assert finding.severity == "info" and "fell in every layer" in finding.sentence


def test_only_the_stream_can_collapse():
    where = {"layer": 3, "place": ["attention", "ffn"]}
    tables = change(frames(), "diversity", where, relative_residual=0.01, cosine=0.999)
    assert find(content(), tables) == []


def test_dimensions_of_too_few_tokens_are_not_judged():
    tables = change(frames(), "dimension", {"layer": 3}, effective_dimension=1)
    assert only(find(content(), tables)).severity == "warning"
    few = change(tables, "dimension", {}, tokens=2 * WIDTH)
    finding = only(find(content(), few))
    assert finding.severity == "info" and "not judged" in finding.sentence


def test_one_dimension_is_explained_by_massive_activations():
    tables = change(frames(), "dimension", {"layer": 3}, effective_dimension=1)
    tables = change(tables, "stream", {"layer": 3}, massive=1, largest=900.0)
    finding = next(one for one in find(content(), tables) if one.id.startswith("dimension"))
    assert finding.severity == "info" and "Massive" in finding.advice


def test_massive_activations_are_named_with_token_and_channel():
    tables = change(
        frames(), "stream", {"layer": 3}, massive=1, largest=900.0, largest_token=0,
        largest_channel=17,
    )  # fmt: skip
    assert "(token 0, channel 17)" in only(find(content(), tables)).sentence


def test_a_stream_beyond_fp16_is_an_error_for_an_fp16_model():
    tables = change(frames(), "stream", {"layer": 3}, largest=5e4)
    assert only(find(content(card(dtype="float16")), tables)).severity == "error"
    assert only(find(content(card(dtype="bfloat16")), tables)).severity == "warning"


def test_gaussian_weights_do_not_cancel():
    generator = np.random.default_rng(0)
    query, key = generator.normal(size=(2, WIDTH // HEADS, WIDTH))
    readings = {
        "norm": np.linalg.norm(key.T @ query, 2),
        "abs_norm": np.linalg.norm(np.abs(key).T @ np.abs(query), 2),
    }
    assert find(content(), change(frames(), "querykey", {}, **readings)) == []


@pytest.mark.parametrize(
    ("severities", "gravest", "at_warning", "at_error"),
    [
        ([], None, False, False),
        (["info"], "info", False, False),
        (["info", "warning"], "warning", True, False),
        (["warning", "error", "info"], "error", True, True),
    ],
)
def test_the_gravest_finding_decides(severities, gravest, at_warning, at_error):
    found = [
        Finding(id=str(i), severity=one, model="m", sentence="S", advice="A.", source="Own")
        for i, one in enumerate(severities)
    ]
    assert worst(found) == gravest
    assert exceeds(found, "warning") is at_warning
    assert exceeds(found, "error") is at_error


@pytest.mark.parametrize("name", SICK)
def test_a_finding_survives_the_turn_through_a_dict(name):
    assert Finding.from_dict(sick(name).to_dict()) == sick(name)


def test_a_model_name_with_slashes_keeps_its_picture():
    tables = change(frames("org/name"), "attention", SPOT, logit_max=131.0)
    finding = only(find(content(card("org/name")), tables))
    assert finding.wanted == ("attention", "org/name", 1, 3, 2)
