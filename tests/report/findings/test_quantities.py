"""Which quantity a finding speaks of: a page opens its curve, and draws the threshold over it."""

import pytest

from layerlab.plugins import list_measures
from tests.report.findings.test_find import SICK, sick

# The quantity that each rule speaks of, and its curve where the measure has several.
QUANTITIES = {
    **{"score": "logit_max", "entropy": "entropy", "sink": "sink_mass", "ratio": "uniform_ratio"},
    **{"enclosure": "norm", "bound": "norm", "steep": "local", "gradient": "gradient"},
    **{"growth": "growth", "idle": "attention_share", "dimension": "effective_dimension"},
    **{"collapse": "relative_residual of stream", "cosine": "cosine of stream"},
    **{"overflow": "largest", "kurtosis": "kurtosis", "massive": "largest"},
    **{"cancelling": "abs_norm", "condition": "condition", "lookback": "l1"},
    **{"unfinite": "mean of fp16", "amplifier": "mean of bf16", "predictor": "mean of bf16"},
    **{"vital": "change of ffn", "harmful": "change of head", "spare": "change of head"},
    **{"steeptail": "alpha of mlp.c_fc", "heavytail": "alpha of mlp.c_fc"},
    **{"deficient": "rank of mlp.c_fc", "dead": "dead_rows of mlp.c_fc"},
}
# These are of tables without layers, which have no curves.
LISTED = {"answers", "cause", "islands", "scores"}
# Their thresholds are no levels of the quantity: ratios, counts, or limits of one place.
RELATIVE = {
    *("enclosure", "bound", "gradient", "cancelling", "lookback", "unfinite", "amplifier"),
    *("predictor", "harmful", "spare", "deficient", "dead"),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", sorted({*SICK} - LISTED))
def test_a_finding_names_the_quantity_that_it_speaks_of(name):
    finding = sick(name)
    column, _, kind = QUANTITIES[name].partition(" of ")
    assert (finding.column, finding.kind) == (column, kind or None)
    assert column in list_measures()[str(finding.measure)].columns
    assert finding.relative == (name in RELATIVE)
