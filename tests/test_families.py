"""Every family of transformers, at a tiny random configuration, against oracles of its own."""

import math

import pytest

from tests.families.examination import TOLERANCE, Examination, examine, logits
from tests.families.page import PAGE, parse
from tests.families.recipe import CLASSES, TOKENS, UNBUILT, build
from tests.families.row import row

BUILT = [family for family in CLASSES if family not in UNBUILT]


@pytest.fixture(scope="module")
def written():
    return parse(PAGE.read_text("utf-8")).installed()


@pytest.mark.parametrize("family", BUILT)
def test_family(family, written):
    """One test a family, so that models are built once: the claims are the functions below."""
    found = examine(family)
    norms_are_those_of_the_svd(found)
    logits_are_bit_identical_and_the_model_is_restored(found)
    every_attention_layer_was_heard_once_or_has_a_reason(found)
    every_measure_has_finite_readings_or_a_reason(found)
    assert row(found).masked() == written[family].masked(), "make docs writes the page anew"


def norms_are_those_of_the_svd(found: Examination) -> None:
    heard = any(passage.records for passage in found.passages.values())
    assert (found.error is not None) == heard
    assert found.error is None or found.error <= TOLERANCE
    assert found.reading <= TOLERANCE


def logits_are_bit_identical_and_the_model_is_restored(found: Examination) -> None:
    assert all(passage.identical for passage in found.passages.values())
    assert found.restored


def every_attention_layer_was_heard_once_or_has_a_reason(found: Examination) -> None:
    for passage in found.passages.values():
        if passage.refused is not None:
            assert len(passage.refused) > 10
            continue
        heard = [found.stack.attention(record.name).number for record in passage.records]
        assert sorted([*heard, *passage.silent]) == list(range(found.attentions))


def every_measure_has_finite_readings_or_a_reason(found: Examination) -> None:
    readings = found.readings
    assert not readings.faults
    for measure in ("spectrum", "attention"):
        lines = readings.rows.get(measure, [])
        heard = {record.layer for record in next(iter(found.passages.values())).records}
        assert {line["layer"] for line in lines} == heard
    for name in {*readings.rows, *readings.refused}:
        lines = readings.rows.get(name, [])
        assert lines or len(readings.refused[name]) > 10
        values = [value for line in lines for value in line.values() if isinstance(value, float)]
        assert not any(math.isinf(value) for value in values), name
        assert not lines or any(math.isfinite(value) for value in values), name


def test_all_default_measures_were_asked_for(written):
    assert set(examine("gpt2").readings.rows) == {
        "diversity",
        "dimension",
        "stream",
        "spectrum",
        "attention",
        "querykey",
        "lipschitz",
        "gain",
    }


def test_the_page_has_every_family_and_counts_what_its_rows_say(written):
    assert {*written, *UNBUILT} == set(CLASSES)
    page = PAGE.read_text("utf-8")
    assert parse(page).render() == page


@pytest.mark.parametrize("family", sorted(UNBUILT))
def test_a_family_that_is_not_built_still_cannot_be(family):
    with pytest.raises(Exception):  # noqa: B017 - each family has its own kind
        assert logits(build(family)).shape[1] == TOKENS
