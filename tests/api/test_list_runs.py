"""`layerlab.list_runs`: the index as a value, as a page, and without torch."""

from pathlib import Path

import pytest

import layerlab
from layerlab import UserError
from layerlab.api.list_runs import check_page
from tests.support.forked import empty_python
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, record, runs, write

ROOT = Path(__file__).resolve().parents[2]
RUN = runs(recipe())[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "runs", record(RUN, 3.5))
    return tmp_path / "runs"


def test_it_is_a_value_with_its_entries(folder):
    found = layerlab.list_runs(folder)
    assert [one.name for one in found] == [RUN.name] and len(found) == 1
    content = found.to_dict()
    assert content["folder"] == str(folder) and content["remarks"] == []
    assert content["entries"][0]["state"] == "finished"


def test_its_page_lies_where_it_is_told_to(folder, tmp_path):
    found = layerlab.list_runs(folder)
    assert found.save(tmp_path / "all.html") == tmp_path / "all.html"
    assert found.save(str(folder)) == folder / "runs.html"
    assert f'href="./{RUN.name}"' in (folder / "runs.html").read_text("utf-8")
    assert f'href="./runs/{RUN.name}"' in (tmp_path / "all.html").read_text("utf-8")
    # An index takes the place of an earlier one, in any language.
    assert found.save(folder, lang="zh").read_text("utf-8").count('lang="zh"') == 1


def test_another_page_is_not_overwritten(folder):
    report = folder / RUN.name / "report.html"
    report.write_text("of a run")
    with pytest.raises(UserError, match="is no page of layerlab runs; name another file"):
        layerlab.list_runs(folder).save(report)
    refuses("there is no page in 'fr'", check_page, folder, "fr")
    assert report.read_text() == "of a run"
    (folder / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="is a link to 'loop', where nothing is"):
        layerlab.list_runs(folder).save(folder / "loop")


@pytest.mark.full
def test_it_loads_no_torch(folder, tmp_path):
    page = tmp_path / "all.html"
    code = (
        "import sys; from layerlab.cli.app import app; "
        f"app(['runs', {str(folder)!r}, '--html', {str(page)!r}], standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = empty_python("-c", code, check=True, cwd=ROOT)
    assert RUN.name in done.stdout and page.is_file()
    assert not {"torch", "transformers", "pandas", "plotly"} & set(done.stderr.split())
