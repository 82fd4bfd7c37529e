"""Names that are known before what declares them is imported."""

from dataclasses import fields

import pytest

from layerlab.blocks.spec import BlockSpec, StackSpec
from layerlab.known_names import (
    ELSEWHERE,
    FIXED,
    MEASURES,
    OF_WEIGHTS,
    PART_OPTIONS,
    STUDIES,
    VARIANTS,
    unknown_measure,
    unknown_variant,
)
from layerlab.measures.measure import WEIGHTS
from layerlab.plugins import list_measures, resolve
from layerlab.studies.engine.discovery import studies
from layerlab.variants import registry


def test_the_names_are_those_that_are_declared():
    assert list(MEASURES) == list(list_measures())
    assert list(STUDIES) == list(studies())
    packaged = [one.name for found in registry._find_packaged() for one in found.variants]
    assert list(VARIANTS) == packaged


def test_what_is_told_apart_by_name_is_so_declared():
    alone = [one.name for one in list_measures().values() if one.needs <= WEIGHTS]
    assert list(OF_WEIGHTS) == alone
    assert {one.name for one in studies().values() if one.fixed} == FIXED


def test_the_options_of_parts_are_those_that_are_declared():
    parts = [one for found in registry._find_packaged() for one in found.parts]
    own = {option for part in parts for option in part.options}
    whole = {one.name for kind in (BlockSpec, StackSpec) for one in fields(kind)}
    assert own | whole == PART_OPTIONS


@pytest.mark.parametrize("here", sorted(set(ELSEWHERE.values())))
def test_a_name_from_elsewhere_leads_to_measures_that_there_are(here):
    assert len(resolve(here)) == 1


@pytest.mark.parametrize("given", ["logit_lens", "logitlens", "Logit-Lens", "logit lens"])
def test_the_logit_lens_is_the_lens(given):
    assert f"no measure is called {given!r}; did you mean 'lens'? known: " in str(
        unknown_measure(given, MEASURES)
    )


def test_a_preset_is_named_as_one():
    said = str(unknown_variant("llama-7", VARIANTS, ["llama-7b"]))
    assert "did you mean the preset 'llama-7b'? type: layerlab variants" in said
    assert "did you mean 'gpt2'?" in str(unknown_variant("gtp2", VARIANTS, ["llama-7b"]))
    assert "did you mean" not in str(unknown_variant("none", VARIANTS))
