"""The check that a user runs on a variant: it passes what is right and names what is wrong."""

from collections.abc import Iterator

import pytest

from layerlab.model.laws import LAWS, STARTS, check
from layerlab.plugins import load
from layerlab.variants import registry
from layerlab.variants.template import write_template

BREAKS = {
    # What is replaced in the template, by what, and what the check then says.
    "a later token": ("self.gain * super()", "x.mean(1, keepdim=True) + super()", "nothing that"),
    "a later token, hidden at first": (
        "self.gain * super()",
        "(self.gain - 1) * x.mean(1, keepdim=True) + super()",
        "nothing that",
    ),
    "the cache": ("self.gain * super()", "x.shape[1] * self.gain * super()", "at once: logits"),
    "an idle parameter": ("return self.gain * super()", "return super()", "none at model.layers.0"),
    "scalars": ("scalars=width", "scalars=width + 1", "parameters are as the formula says: cost"),
    "flops": ("Cost(scalars", "Cost(flops=1, scalars", "FLOPs are as the formula says: cost says"),
    "the start": ("default=1.0", "default=0.5", "as its baseline: logits differ"),
}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test loads from outside is gone after it."""
    yield
    registry._ADDED.clear()


@pytest.mark.full
def test_the_template_keeps_every_law(tmp_path):
    load(write_template(tmp_path / "idea.py"))
    verdicts = check("idea")
    assert [str(one) for one in verdicts] == [f"holds: {law}" for law in {**LAWS, **STARTS}]


@pytest.mark.few(3)
@pytest.mark.parametrize("fault", BREAKS)
def test_what_breaks_a_law_is_named(fault, tmp_path):
    path = write_template(tmp_path / "idea.py")
    right, wrong, said = BREAKS[fault]
    text = path.read_text("utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong), "utf-8")
    load(path)
    failed = [str(one) for one in check("idea") if not one.holds]
    assert any(one.startswith("FAILS: ") and said in one for one in failed), failed


@pytest.mark.full
def test_a_law_of_the_start_is_asked_only_where_a_variant_promises_it(tmp_path):
    path = write_template(tmp_path / "idea.py")
    text = path.read_text("utf-8")
    path.write_text(text.replace('start="identity"', 'start="own"'), "utf-8")
    load(path)
    assert [one.law for one in check("idea", start=0.5)] == list(LAWS)
