"""Measures are found in their files, asked for by name, and brought from outside."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.measures.measure import Measure
from layerlab.plugins import list_measures, load, resolve, with_saliency
from tests.support.refused import refusal, refuses

DECLARED = """
from layerlab.measures.measure import Measure

MEASURES = (
    Measure(
        name="{name}", title="Length", unit="tokens", source="Own.", about="One. Two.",
        equation="n", per=("sequence", "layer"), columns={{"length": "tokens"}},
        plot=("length",), better=None, needs=frozenset({{"stream"}}),
        read=lambda layer, run: [dict(length=len(layer.tokens))],
        options={{"epsilon": 0.5, "top": 3, "plain": True, "label": "x", "seed": None}},
    ),
)
"""


def outside(folder: Path, name: str = "length", file: str = "mine.py") -> Path:
    path = folder / file
    path.write_text(DECLARED.format(name=name))
    return path


@pytest.fixture
def length(tmp_path: Path) -> Measure:
    return load(outside(tmp_path))[0]


def test_nothing_asked_for_means_the_default_set():
    assert [one.name for one in resolve()] == [
        one.name for one in list_measures().values() if one.default
    ]


def test_a_loaded_measure_joins_the_default_set_even_when_it_is_costly(length):
    assert resolve(None, [replace(length, default=False)])[-1].name == "length"


def test_options_in_brackets_replace_the_defaults_and_leave_the_others(length):
    (changed,) = resolve(["length(epsilon=1, label='a,b')"], [length])
    assert changed.options == {**length.options, "epsilon": 1, "label": "a,b"}
    assert length.options["epsilon"] == 0.5


def test_options_may_stand_in_a_table_as_a_report_has_them(length):
    first, second = resolve({"length": {"epsilon": 0.25}, "diversity": {}}, [length])
    assert first.options == {**length.options, "epsilon": 0.25} and second.name == "diversity"
    said = (
        "the options of 'length' are 3; expected a table, such as {'dimension': {'epsilon': 0.9}}"
    )
    refuses(said, resolve, {"length": 3}, [length])
    refuses("epsilon", resolve, {"length": {"epsilon": "x"}}, [length])


def test_one_string_names_several_measures_in_the_given_order(length):
    asked = resolve([" length(top=2), diversity, "], [length])
    assert [one.name for one in asked] == ["length", "diversity"]


def test_a_measure_as_a_value_is_taken_as_it_is(length):
    assert resolve([length]) == [length]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("lenght", r"no measure is called 'lenght'; did you mean 'length'\? known: diversity, "),
        ("zzz", r"no measure is called 'zzz'; known: "),
        ("length(epsilon=1", r"cannot read the measures 'length\(epsilon=1'; expected names"),
        ("length(0.5)", "cannot read the measures"),
        ("length(epsilon=open('x'))", "cannot read the measures"),
        ("a.b", "cannot read the measures"),
        ("", r"no measure is named; type for example --measures 'diversity"),
        (
            "length(eps=1)",
            "measure 'length' has no option 'eps'; did you mean 'epsilon'\\? its opt",
        ),
        (
            "length(top=0.5)",
            r"option top of measure 'length' got 0.5; expected a whole number: type length\(",
        ),
        ("length(top=True)", "got True; expected a whole number"),
        ("length(plain=1)", "got 1; expected True or False"),
        ("length(epsilon='x')", "got 'x'; expected a number"),
        ("length(epsilon=nan)", "got 'nan'; expected a number"),
        ("length(epsilon=1e999)", "got inf; expected a number"),
        ("length(label={[]: 1})", "cannot read the measures"),
        (
            "spectrum(dtype='nope')",
            r"option dtype of measure 'spectrum' got 'nope'; expected 'float32' or 'float64': "
            r"type spectrum\(dtype='float32'\)",
        ),
        ("spectrum(dtype='int8')", "got 'int8'; expected 'float32' or 'float64'"),
        ("spectrum(dtype=half)", "got 'half'; expected 'float32' or 'float64'"),
        ("attention(dtype=5)", "got 5; expected 'float32' or 'float64'"),
        ("querykey(tokens='x')", "got 'x'; expected None or a whole number at least 1 and at most"),
        ("querykey(tokens=0)", "got 0; expected None or a whole number at least 1"),
        ("lipschitz(steps=0)", "got 0; expected a whole number at least 1: type lipschitz"),
        ("lipschitz(steps=-1)", "got -1; expected a whole number at least 1"),
        ("lipschitz(seed=1.5)", "got 1.5; expected a whole number at least 0"),
        ("lipschitz(seed=2**64)", "cannot read the measures"),
        ("lipschitz(seed=18446744073709551616)", "expected a whole number at least 0 and at most"),
        ("lipschitz(tolerance=-1)", "got -1; expected a number at least 0"),
        ("lipschitz(memory_gib='a')", "got 'a'; expected a number at least 0"),
        ("dimension(epsilon=0)", "got 0; expected a number above 0 and at most 1"),
        ("dimension(epsilon=1.1)", "got 1.1; expected a number above 0 and at most 1"),
        ("length,length", "the measure 'length' is named 2 times; name it once: type --measures l"),
        ("length(top=1, top=2)", r"length\(top=\.\.\.\) is given twice; type it once"),
    ],
)
def test_what_cannot_be_measured_is_answered_in_one_line(asked, answer, length):
    refuses(answer, resolve, [asked], [length])


def test_a_string_alone_is_a_list_of_names_and_a_measure_alone_is_itself(length):
    assert [one.name for one in resolve("stream,diversity")] == ["stream", "diversity"]
    assert resolve(length) == [length]


@pytest.mark.parametrize("asked", ["", [""], [], ()])
def test_naming_nothing_is_answered_with_an_example(asked):
    refuses("no measure is named; type for example", resolve, asked)


@pytest.mark.parametrize("asked", [5, [5], ["stream", None]])
def test_what_is_neither_a_name_nor_a_measure_is_answered_in_one_line(asked):
    refuses(r"cannot read the measures .*; expected names with commas", resolve, asked)


def test_a_choice_may_stand_without_quotes():
    assert resolve("spectrum(dtype=float64)") == resolve("spectrum(dtype='float64')")


def test_every_default_of_the_package_is_one_that_it_takes():
    for measure in list_measures().values():
        assert measure.given(**measure.options).options == measure.options
        assert set(measure.domains) <= set(measure.options)


def test_an_option_without_a_default_takes_any_value(length):
    assert resolve(["length(seed=7)"], [length])[0].options["seed"] == 7


def test_two_files_that_claim_one_name_are_told_apart(tmp_path):
    mine = load(outside(tmp_path, name="diversity"))
    refuses(r"two measures are called 'diversity'.*layerlab_loaded_mine", resolve, None, mine)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"no Python file at .*absent\.py; expected a file that ends"
    ):
        load(tmp_path / "absent.py")


def test_a_file_of_another_kind_is_refused(tmp_path):
    refuses("no Python file at", load, outside(tmp_path, file="mine.txt"))


@pytest.mark.parametrize("foot", ["", "MEASURES = ()[0:]\nMEASURES = None", "MEASURES = (1,)"])
def test_a_file_with_nothing_at_its_foot_is_told_what_to_add(tmp_path, foot):
    path = tmp_path / "empty.py"
    path.write_text(foot)
    refuses("declares no measures, parts or variants; expected a tup", load, path)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ndef broken(:\n", "broken.py as Python: line 2: invalid syntax; mend that line"),
        ("x = 'a\n", "line 1: unterminated string literal"),
        ("\0", "as Python: line 1: source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_is_not_python_is_answered_in_one_line(tmp_path, source, said):
    path = tmp_path / "broken.py"
    path.write_text(source)
    refuses(re.escape(said), load, path)


@pytest.mark.parametrize(
    ("line", "did"),
    [
        ("1 / 0", "failed while it was loaded: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "ended Python while it was loaded: SystemExit: 0"),
        ("import os; os.listdir('/nowhere')", "failed while it was loaded: FileNotFoundError:"),
    ],
)
def test_a_file_that_fails_while_it_is_loaded_is_named_with_its_line(line, did, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(f"A = 1\n{line}\nMEASURES = ()\n")
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, line 2 {did}")
    assert caught.value.__cause__ is not None  # its author may want the rest
    assert "layerlab_loaded_broken" not in sys.modules


def test_a_text_brings_its_saliency_and_keeps_what_was_asked_of_it():
    chosen = with_saliency(resolve("stream,saliency(bins=8)"), "I am", " here", None)
    assert [one.name for one in chosen] == ["stream", "saliency"]
    options = chosen[1].options
    assert (options["text"], options["target"], options["foil"]) == ("I am", " here", None)
    assert options["bins"] == 8
    assert with_saliency(resolve("stream"), None, None, None) == resolve("stream")
    probe = with_saliency(resolve("saliency"), None, None, " there")[0].options
    assert probe["foil"] == " there" and probe["text"].startswith("The lamp on the pier")


def test_a_word_without_a_text_is_refused():
    assert "--foil asks about the next token of a text; type for example" in refusal(
        with_saliency, resolve("stream"), None, None, " there"
    )
