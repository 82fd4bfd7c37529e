"""Options that are known before what declares them is imported."""

from layerlab import known_options
from layerlab.plugins import list_measures
from layerlab.studies.engine.discovery import studies


def test_the_options_of_measures_are_those_that_are_declared():
    declared = {one.name: one.known_options for one in list_measures().values() if one.options}
    assert declared == known_options.MEASURES
    assert [*declared] == [*known_options.MEASURES]


def test_the_options_of_studies_are_those_that_are_declared():
    declared = {one.name: one.known_options for one in studies().values() if one.options}
    assert declared == known_options.STUDIES
    assert [*declared] == [*known_options.STUDIES]
