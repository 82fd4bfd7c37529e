"""The table of the sources' places: what counts as a citation, and that nothing is passed over."""

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COVERED = runpy.run_path(str(ROOT / "docs" / "covered.py"))
PLACES = {
    "pangu23": dict.fromkeys(["Lemma 1", "Lemma 2", "Lemma 3", "Table 2", "equation 7"], ""),
    "budzinskiy25": dict.fromkeys(["Lemma 3.8", "Lemma 4.6", "Lemma 4.7", "Lemma 4.8"], ""),
    "spectral25": dict.fromkeys(["section 1.2", "section 1.2.1", "section 1.2.2"], ""),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Source: pangu23, Lemma 1.", {("pangu23", "Lemma 1")}),
        ("pangu23, Lemmas 1 to 3", {("pangu23", f"Lemma {number}") for number in (1, 2, 3)}),
        (
            "pangu23, equation 7 and Table 2; Own",
            {("pangu23", "equation 7"), ("pangu23", "Table 2")},
        ),
        (
            "budzinskiy25, Lemmas 4.6 to 4.8",
            {("budzinskiy25", f"Lemma {number}") for number in ("4.6", "4.7", "4.8")},
        ),
        (
            "pangu23, Lemma 1; budzinskiy25, Lemma 3.8",
            {("pangu23", "Lemma 1"), ("budzinskiy25", "Lemma 3.8")},
        ),
        (
            "spectral25, sections 1.2.1 and 1.2.2, second figure",
            {("spectral25", "section 1.2.1"), ("spectral25", "section 1.2.2")},
        ),
        ("pangu23 is a source. Lemma 2 of another", set()),
        ("pangu23, Lemma 9", set()),
    ],
)
def test_a_citation_names_each_of_its_places_and_ends_with_its_sentence(text, expected):
    assert set(COVERED["cited"](text, PLACES)) == expected


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("test_lemma_1_a_matrix_stretches_diversity", "pangu23", {"Lemma 1"}),
        ("test_refuted_lemma_4_6_to_first_order", "budzinskiy25", {"Lemma 4.6"}),
        ("test_lemmas_4_6_to_4_8_hold", "budzinskiy25", {"Lemma 4.6", "Lemma 4.7", "Lemma 4.8"}),
        ("test_a_model_of_7_layers", "pangu23", set()),
    ],
)
def test_the_name_of_a_test_says_what_it_holds(name, key, expected):
    assert COVERED["named"](name, PLACES[key]) == expected


def test_a_place_of_which_nothing_speaks_is_an_error(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "places.toml").write_text('[pangu23]\n"Lemma 99" = "none"\n', "utf-8")
    with pytest.raises(ValueError, match="nothing speaks of pangu23: Lemma 99"):
        COVERED["covered"](tmp_path, [])


def test_a_claim_on_a_place_that_is_not_in_the_list_is_an_error():
    def claimed(place: str) -> tuple[Any, ...]:
        said = {"scale": "", "word": "holds", "claim": "It is so."}
        return (SimpleNamespace(place=place, verdict=said, link="here"),)

    ours = [claimed("Own, of pangu23's two halves"), claimed("Own; pangu23, Lemma 1")]
    found = COVERED["read_verdicts"](ours, PLACES)
    assert found == {("pangu23", "Lemma 1"): ["**holds**: *Own*: It is so. (here)"]}
    with pytest.raises(ValueError, match=r"a claim is on pangu23, abstract, no place"):
        COVERED["read_verdicts"]([claimed("pangu23, Lemma 1; pangu23, abstract")], PLACES)


def test_a_recipe_cites_line_by_line_and_says_its_name(tmp_path):
    folder = tmp_path / "layerlab" / "recipes"
    folder.mkdir(parents=True)
    lines = ("# Of pangu23, Lemma 1", 'claim = "Lemma 2 of another"')
    (folder / "one.toml").write_text("\n".join(lines), "utf-8")
    (tmp_path / "layerlab" / "printed.toml").write_text("# As in pangu23, Lemma 3", "utf-8")
    found = COVERED["read_code"](tmp_path, PLACES)
    told = {
        ("pangu23", "Lemma 1"): ["the recipe `one`"],
        ("pangu23", "Lemma 3"): ["`printed.toml`"],
    }
    assert {
        place: found[place] for place in (*told, ("pangu23", "Lemma 2")) if place in found
    } == told


def test_an_example_of_a_citation_is_no_place_of_it(tmp_path):
    folder = tmp_path / "layerlab"
    folder.mkdir()
    text = '"""Print.\n\n    Source: pangu23, {}.\n    {}"""\n'
    (folder / "real.py").write_text(text.format("Lemma 1", ""), "utf-8")
    shown = "\n    Example:\n        >>> print('pangu23, Lemma 2')\n    "
    (folder / "shown.py").write_text(text.format("Lemma 3", shown), "utf-8")
    (folder / "recipes").mkdir()
    found = COVERED["read_code"](tmp_path, PLACES)
    lemmas = {place: files for (_, place), files in found.items() if "Lemma" in place}
    assert lemmas == {"Lemma 1": ["`real.py`"], "Lemma 3": ["`shown.py`"]}
