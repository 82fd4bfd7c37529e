"""Names that are known before what declares them is imported."""

import pytest

from layerlab.known_names import (
    ELSEWHERE,
    MEASURES,
    STUDIES,
    VARIANTS,
    unknown_measure,
    unknown_variant,
)
from layerlab.plugins import list_measures, resolve
from layerlab.studies.engine.discovery import studies
from layerlab.variants import registry


def test_the_names_are_those_that_are_declared() -> None:
    assert list(MEASURES) == list(list_measures())
    assert list(STUDIES) == list(studies())
    packaged = [one.name for found in registry._find_packaged() for one in found.variants]
    assert list(VARIANTS) == packaged


@pytest.mark.parametrize("here", sorted(set(ELSEWHERE.values())))
def test_a_name_from_elsewhere_leads_to_measures_that_there_are(here: str) -> None:
    assert len(resolve(here)) == 1


@pytest.mark.parametrize("given", ["logit_lens", "logitlens", "Logit-Lens", "logit lens"])
def test_the_logit_lens_is_the_lens(given: str) -> None:
    assert f"no measure is called {given!r}; did you mean 'lens'? known: " in str(
        unknown_measure(given, MEASURES)
    )


def test_a_preset_is_named_as_one() -> None:
    said = str(unknown_variant("llama-7", VARIANTS, ["llama-7b"]))
    assert "did you mean the preset 'llama-7b'? type: layerlab variants" in said
    assert "did you mean 'gpt2'?" in str(unknown_variant("gtp2", VARIANTS, ["llama-7b"]))
    assert "did you mean" not in str(unknown_variant("none", VARIANTS))
