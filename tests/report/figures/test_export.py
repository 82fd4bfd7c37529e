"""Figures as files: said beforehand what is missing, white, legible, and really drawn."""

import logging
import sys
from types import SimpleNamespace

import pytest

from layerlab import UserError
from layerlab.report.figures import export
from layerlab.report.figures.export import Figure, axis, check_drawing, draw, layout
from tests.support.refused import refusal, refuses

LINE = [{"type": "scatter", "x": [1, 2], "y": [3, 5], "name": "<b>x</b>"}]


@pytest.fixture
def really() -> None:
    """Skip where nothing can be drawn."""
    try:
        check_drawing("svg")
    except UserError as missing:
        pytest.skip(str(missing))


def browser(monkeypatch, found):
    """Kaleido is there, and its search for a browser ends so."""
    module = SimpleNamespace(Chromium=SimpleNamespace(find_browser=lambda skip_local: found))
    monkeypatch.setattr(export, "drawable", lambda: True)
    for name in ("choreographer", "choreographer.browsers"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "choreographer.browsers.chromium", module)


def test_an_unknown_format_is_one_line():
    refuses("figures are 'gif'; expected one of svg, png, pdf", check_drawing, "gif")


def test_a_missing_kaleido_is_one_line_with_what_to_type(monkeypatch):
    monkeypatch.setattr(export, "drawable", lambda: False)
    assert refusal(check_drawing, "svg") == (
        "figures as svg are drawn by kaleido, which is not installed; "
        "in a copy of the repository type: pip install '.[figures]'"
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [(None, "which is not found; install one"), ("/none/x", "is not at BROWSER_PATH, '/none/x'")],
)
def test_a_missing_browser_is_one_line(monkeypatch, found, said):
    browser(monkeypatch, found)
    assert said in refusal(check_drawing, "png")


def test_a_browser_that_is_there_is_enough(monkeypatch):
    browser(monkeypatch, sys.executable)
    check_drawing("pdf")


def test_figures_are_white_and_asked_for_without_a_network(monkeypatch, tmp_path):
    told = []
    fake = SimpleNamespace(
        write_fig_from_object_sync=lambda *args, **more: told.append((args, more))
    )
    monkeypatch.setitem(sys.modules, "kaleido", fake)
    dark = Figure(data=LINE, layout=layout(paper_bgcolor="#000000"), width=400, height=300)
    draw({"a": dark}, tmp_path, "png")
    draw({}, tmp_path)
    ((((order,),), options),) = told
    assert order["fig"]["layout"]["paper_bgcolor"] == "#ffffff"
    assert order["fig"]["layout"]["template"] == "none"
    assert order["path"] == str(tmp_path / "a.png")
    assert order["opts"] == {"format": "png", "width": 400, "height": 300, "scale": 3}
    assert options["kopts"]["mathjax"] is False and options["cancel_on_error"]


def test_what_fails_in_the_browser_is_one_line(monkeypatch, tmp_path):
    def fail(*args, **more):
        raise RuntimeError("the browser\nwent away")

    fake = SimpleNamespace(write_fig_from_object_sync=fail)
    monkeypatch.setitem(sys.modules, "kaleido", fake)
    monkeypatch.setattr(logging.getLogger("kaleido"), "level", logging.INFO)
    with pytest.raises(UserError, match=r"the figures were not drawn: the browser went away"):
        draw({"a": Figure(data=LINE, layout={})}, tmp_path)
    assert logging.getLogger("kaleido").level == logging.INFO


def test_letters_are_legible_in_a_column():
    """At 3.5 inches for a column a letter of a figure stands at 7 points or more."""
    own = layout()
    assert own["font"]["size"] * (3.5 * 72 / export.COLUMN) >= 7
    assert "title" not in own


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_each_format_is_really_drawn(really, tmp_path, kind, start):
    named = Figure(data=LINE, layout=layout(showlegend=True, xaxis=axis("layer")))
    draw({"one": named}, tmp_path, kind)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert file.name == f"one.{kind}" and content.startswith(start)
    if kind == "svg":
        assert b"layer" in content and b"modebar" not in content
        assert b'style="background: rgb(255, 255, 255)' in content or b"255, 255, 255" in content
