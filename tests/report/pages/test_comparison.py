"""The page of a comparison as text: what it says, safe, small, whole, whatever is missing."""

import csv
import html
import json
import math
import re
import tomllib
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from layerlab.records.parse import unseal
from layerlab.report.pages.comparison import render, save_comparison, save_run, view
from layerlab.report.pages.shell import policy
from tests.report.pages.test_inspection import Tags, check_addresses, compare_tags
from tests.report.support.race import race, single, write_runs
from tests.report.support.sample import HOSTILE
from tests.support.refused import refuses

LIMIT = 1_500_000
RATES = (0.001, 0.003, 0.01)


def body(page: str) -> str:
    """The page without its data and scripts."""
    return page[page.index("<body>") : page.index('<script type="application/json"')]


@cache
def whole() -> tuple[dict, str]:
    """A comparison and its page, for tests that change neither."""
    content = race()
    return content, render(content)


def few() -> dict:
    """Two arms and short curves, where it does not matter how many."""
    return race(("llama", "history-1"), updates=40)


def table(folder: Path, name: str) -> list[dict[str, str]]:
    lines = (folder / "tables" / f"{name}.csv").read_text("utf-8").splitlines()
    return list(csv.DictReader(lines))


def ids(page: str) -> set[str]:
    return set(re.findall(r'<section id="(\w+)"', page))


def written(page: str) -> dict:
    """The data that the scripts draw."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


@pytest.mark.full
def test_every_arm_has_its_verdict_difference_and_interval_lowest_first():
    content, page = whole()
    shown = body(page)
    forest = shown[shown.index('<ol class="forest"') : shown.index("</ol>")]
    order = sorted(content["rows"], key=lambda row: row["difference"])
    names = re.findall(r"<b>(llama|history-\d)</b>", forest)
    assert names == [row["arm"] for row in order]
    verdicts = re.findall(r'class="word">([^<]+)<', forest)
    assert verdicts == [row["verdict"] for row in order]
    best = order[0]
    text = f"[-{-best['low']:.4f}, -{-best['high']:.4f}]"
    assert f"<b>-{-best['difference']:.4f}</b> <span>{text}</span>" in forest
    assert f"{order[0]['arm']}: {order[0]['difference']:+.3f} nats" in forest
    assert "Caveats" in shown


@pytest.mark.full
def test_the_table_holds_the_numbers_of_every_arm():
    content, page = whole()
    row = content["rows"][1]
    shown = body(page)
    numbers = shown[shown.index('id="numbers"') : shown.index('id="curves"')]
    assert f"{row['nats']:.4g}" in numbers
    assert f"{row['holm']:.4g}" in numbers
    assert f"{row['detectable']:.4g}" in numbers
    assert "1,200,008" in numbers
    assert "621 MB" in numbers
    assert "+0.05\N{NO-BREAK SPACE}%" in numbers
    assert "matched to the baseline by parameters" in numbers


@pytest.mark.full
def test_what_each_arm_changes_stands_beside_its_numbers():
    content, page = whole()
    changes = body(page)[
        body(page).index('id="differs-title"') : body(page).index('id="cost-title"')
    ]
    rows = re.findall(r"<tr><th scope=.row.>.*?</tr>", changes)
    assert len(rows) == len(content["rows"]) - 1  # a baseline changes nothing
    assert "<b>residual</b> plain → history-1</span>" in rows[0]
    assert "<b>size</b> inner 128 → 127</span>" in rows[0]
    assert "+8 (+0.01\N{NO-BREAK SPACE}%)" in rows[0] and "+0 (+0.00\N{NO-BREAK SPACE}%)" in rows[0]
    unknown = [{**row, "differs": None} for row in content["rows"]]
    assert "What each arm changes" not in render({**content, "rows": unknown})


def test_a_comparison_in_bits_per_byte_says_so():
    content = race(("llama", "history-1")) | {"metric": "bits_per_byte"}
    shown = render(content)
    assert "in bits per byte, over the same seeds" in shown
    assert '<option value="bits_per_byte" selected>' in shown
    assert written(shown)["runs"][0]["value"] == pytest.approx(
        content["runs"][0]["bits_per_byte"], rel=1e-4
    )


def test_runs_of_other_arms_are_counted_below_the_runs_and_are_no_caveats():
    shown = body(render({**race(("llama", "history-1")), "elsewhere": {"gpt2": 3}}))
    below = shown[shown.index('id="runs"') :]
    assert "runs of arms that are not compared here: gpt2 (3)." in below
    assert "gpt2" not in shown[: shown.index('id="runs"')]


def test_what_was_declared_to_differ_stands_in_a_box_with_its_values():
    content = race(("llama", "history-1"))
    content["recipe"]["compare"]["allowed_differences"] = ["train.batch_size"]
    for manifest in content["manifests"].values():
        manifest["recipe"]["train"]["batch_size"] = 8 if manifest["arm"] == "llama" else 16
    shown = body(render(content))
    box = shown[shown.index('id="declared"') : shown.index('<ol class="forest"')]
    assert "<code>train.batch_size</code>" in box
    assert "8 (llama); 16 (history-1)" in box
    assert 'id="declared"' not in body(render(race(("llama", "history-1"))))


def test_a_declared_difference_that_only_a_remark_tells_of_is_boxed_too():
    content = race(("llama", "history-1")) | {
        "remarks": ["declared to differ: train.batch_size is 8 in a and 16 in b"]
    }
    content["recipe"] = {}
    shown = body(render(content))
    assert "train.batch_size is 8 in a and 16 in b" in shown[shown.index('id="declared"') :]
    assert "Caveats" not in shown


@pytest.mark.full
def test_manifests_say_what_was_equal_and_what_was_not():
    shown = body(whole()[1])
    equal = shown[shown.index('id="equal"') : shown.index('id="runs"')]
    differed, same = equal.split("What was equal: ")
    assert "recipe.model.variant" in differed and "recipe.train.seed" in differed
    assert "versions.torch" in same and "recipe.train.batch_size" in same


def test_the_recipe_on_the_page_is_the_recipe():
    content, shown = whole()
    text = re.search(r'aria-label="The recipe"><code>(.*?)</code>', shown, re.DOTALL)[1]
    read = tomllib.loads(html.unescape(text))
    assert read["compare"] == content["recipe"]["compare"]
    assert read["data"] == content["recipe"]["data"]
    assert "preset" not in read["model"]
    assert "layerlab compare recipe.toml" in shown


@pytest.mark.full
def test_sections_are_there_where_there_is_something_to_show():
    shown = ids(render(race(("llama", "history-1"), rates=RATES)))
    assert {"verdict", "numbers", "curves", "paired", "rates", "monitor", "runs"} <= shown
    bare = race(("llama",)) | {"monitor": [], "paired": [], "manifests": {}, "rows": []}
    assert ids(render(bare)) == {"verdict", "curves", "runs", "repeat"}


def test_alarms_notes_and_samples_are_listed_with_their_place():
    content = race(("llama", "history-1"))
    place = {"run": "a", "arm": "llama", "seed": 2, "update": 120}
    content["alarms"] = [
        {**place, "layer": 3, "measure": "score", "value": 131.2, "text": "the score doubles"}
    ]
    content["notes"] = [{**place, "text": "out of memory: micro-batch 16 became 8"}]
    content["samples"] = [{**place, "prompt": "The jury", "text": " said"}]
    shown = body(render(content))
    assert "the score doubles" in shown and "<b>131.2</b>" in shown
    assert "<span>seed 2</span><span>update 120</span><span>layer 3</span>" in shown
    assert "micro-batch 16 became 8" in shown
    assert "llama, seed 2, update 120" in shown
    assert "<b>&#34;The jury&#34;</b> &#34; said&#34;" in shown


@pytest.mark.parametrize("written", ["", "    ", '\n\t\x00\x7f\x1b[2J\u202e "a\\', "naïve 漢"])
def test_a_sample_is_shown_so_that_it_can_be_read_back(written):
    content = race(("llama",)) | {"samples": [{"update": 1, "prompt": "", "text": written}]}
    block = re.search(r'<blockquote><b>""</b> (.*)</blockquote>', plain(content))
    assert block is not None and json.loads(block[1]) == written
    assert block[1].isprintable()
    assert "naïve 漢" in block[1] or "naïve" not in written


def plain(content: dict) -> str:
    """The body of a page, its entities read."""
    return html.unescape(body(render(content)))


def hostile(words: str) -> dict:
    """A comparison whose every free text is `words`."""
    content = race(("llama", words), rates=(0.001, 0.003))
    content |= dict.fromkeys(("name", "about", "inferred", "created", "layerlab"), words)
    content["remarks"] = [words]
    content["command"] = words
    place = {"run": words, "arm": words, "update": 1, "measure": words, "text": words}
    content["alarms"] = content["notes"] = [place]
    content["samples"] = [{**place, "prompt": words}]
    content["recipe"]["about"] = words
    content["recipe"]["compare"]["allowed_differences"] = [words]
    for row in content["rows"]:
        row["said"] = words
    for run in content["runs"]:
        run["diverged"] = words
    for reading in content["monitor"]:
        reading["measure"] = words
    for manifest in content["manifests"].values():
        manifest["data"][words] = words
    return content


@pytest.mark.full
def test_hostile_text_adds_no_tag_and_no_attribute_to_the_page():
    wild = compare_tags(lambda words: render(hostile(words)))
    assert "49" not in {text for text in wild.scripts[0].split('"') if text == "49"}


def test_the_page_names_no_other_file_and_every_script_is_allowed_by_its_hash():
    page = Tags(whole()[1])
    check_addresses(page)
    given = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert given == policy(page.running)


@pytest.mark.full
def test_a_large_comparison_stays_below_the_limit():
    content = race(seeds=(1, 2, 3, 4, 5), rates=RATES, updates=900, every=2, layers=12, heads=1)
    page = render(content)
    assert len(page.encode()) <= LIMIT
    shown = written(page)
    points = [len(one["update"]) for one in shown["curves"]["train"]["runs"].values()]
    assert len(points) == 120 and max(points) <= 400
    assert shown["curves"]["train"]["thinned"]


def test_nothing_at_all_is_a_page():
    assert ids(render({"name": "empty"})) == {"verdict", "curves", "repeat"}
    assert ids(render({}, single=True)) == {"verdict", "curves", "repeat"}


def test_one_seed_has_no_interval_and_no_band():
    content = race(("llama", "history-1"), seeds=(1,))
    page = render(content)
    forest = page[page.index('<ol class="forest"') : page.index("</ol>")]
    assert "too few seeds" in forest
    assert "interval" not in forest
    assert 'data-control="band"' not in page
    assert written(page)["widths"] == {}
    assert "nan" not in body(page).lower().replace("finance", "")


def test_what_is_not_a_number_is_a_dash_and_a_diverged_run_is_named():
    content = race(("llama", "history-1"))
    content["rows"][1] |= dict.fromkeys(("nats", "difference", "low", "high", "holm"), math.nan)
    content["rows"][1] |= {"verdict": "worse", "detectable": math.inf}
    content["runs"][-1] |= {"nats": math.nan, "diverged": "the loss is NaN at update 122"}
    page = render(content)
    shown = body(page)
    assert "1 run diverged" in shown
    assert "the loss is NaN at update 122" in shown
    assert "no result" in shown
    last = written(page)["runs"][-1]
    assert last["lost"] and last["value"] is None


def test_a_comparison_that_is_still_running_says_how_many_are_missing():
    content = race(("llama", "history-1"))
    for run in content["runs"][:2]:
        run |= {"finished": False, "nats": None}
    assert "2 of 6 runs are not finished" in body(render(content))


def test_while_no_run_of_an_arm_is_chosen_all_of_it_is_drawn():
    content = race(("llama", "history-1"), rates=RATES)
    for run in content["runs"]:
        run["chosen"] = run["chosen"] and run["arm"] == "llama"
    judged = [(run["arm"], run["judged"]) for run in written(render(content))["runs"]]
    assert judged.count((0, True)) == 3
    assert judged.count((1, True)) == 9


def test_a_single_run_has_no_verdict_and_shows_what_it_wrote():
    page = render(single(), single=True)
    assert {"verdict", "curves", "monitor", "samples"} <= ids(page)
    shown = body(page)
    assert "forest" not in shown and 'id="arms"' not in shown
    assert shown.index("the county had been fair") < shown.index("the the of a")
    assert "layerlab train recipe.toml" in shown


def test_a_damaged_content_is_refused_by_the_name_of_its_part():
    refuses(r"no content of a comparison: 'rows' is damaged", render, race() | {"rows": "x"})
    refuses("'runs' is damaged; type layerlab compare", render, race() | {"runs": [1]})


@pytest.mark.full
def test_saving_leaves_the_runs_alone_and_reads_their_manifests(tmp_path):
    content = race(("llama", "history-1"))
    kept = {k: v for k, v in content.items() if k not in ("monitor", "manifests")}
    write_runs(content, tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    page = save_comparison(kept, tmp_path)
    assert page == (tmp_path / "report.html").resolve()
    assert {p: p.read_bytes() for p in before} == before
    assert {"monitor", "equal", "notes", "samples"} <= ids(page.read_text("utf-8"))
    written = unseal(json.loads((tmp_path / "comparison.json").read_text("utf-8")))
    first, brief = (one["curves"][0]["train"]["loss"] for one in (kept, written))
    assert brief == pytest.approx(first, rel=1e-6)
    assert {**written, "curves": kept["curves"]} == kept
    assert ElementTree.parse(tmp_path / "pictures" / "forest.svg").getroot().tag.endswith("svg")
    rows = table(tmp_path, "rows")
    assert [row["arm"] for row in rows] == ["llama", "history-1"]
    assert float(rows[1]["nats"]) == content["rows"][1]["nats"]
    points = table(tmp_path, "train")
    assert len(points) == sum(len(one["train"]["loss"]) for one in content["curves"])
    assert float(points[0]["loss"]) == content["curves"][0]["train"]["loss"][0]
    names = {"report.html", "comparison.json", "tables", "pictures", "runs"}
    assert {p.name for p in tmp_path.iterdir()} == names


def test_saving_again_replaces_the_page_and_an_empty_table_keeps_its_head(tmp_path):
    save_comparison(race(("llama", "history-1")), tmp_path)
    save_comparison({"name": "second"}, tmp_path)
    assert "<title>second" in (tmp_path / "report.html").read_text("utf-8")
    assert list((tmp_path / "pictures").iterdir()) == []
    assert (tmp_path / "tables" / "paired.csv").read_text().startswith("arm,tokens,n,difference")


def test_a_run_is_saved_from_its_folder(tmp_path):
    content = race(("llama",), seeds=(1,))
    (folder,) = write_runs(content, tmp_path)
    page = save_run(folder).read_text("utf-8")
    assert {"curves", "monitor", "samples", "equal"} <= ids(page)
    assert f"{content['runs'][0]['nats']:.4g}" in body(page)
    points = table(folder, "evaluation")
    assert [float(p["nats"]) for p in points] == content["curves"][0]["evaluation"]["nats"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    refuses(r"no run has begun in .*; expected a folder of layerlab", save_run, tmp_path)


@pytest.mark.full
def test_the_same_comparison_gives_the_same_page():
    assert render(race()) == whole()[1]


@pytest.mark.full
def test_a_view_is_what_json_can_hold():
    content = race(("llama", "history-1"), rates=RATES) | {"alarms": [], "notes": [], "samples": []}
    json.dumps(view(content), allow_nan=False)


def claim(verdict: str, words: str = "Two terms are better than one.") -> dict:
    return {"source": "pangu23, Table 2", "says": words, "verdict": verdict} | {
        "said": f"{verdict}: a against b: -0.0123 nats",
        "pairs": [],
    }


@pytest.mark.full
def test_what_sources_claim_stands_with_its_verdict():
    claims = [claim("holds"), claim("fails", "It fails."), claim("not decided"), {}]
    page = render(few() | {"claims": claims})
    assert "claims" in ids(page) and '<a href="#claims">' in page
    part = body(page)[body(page).index('id="claims"') : body(page).index('id="numbers"')]
    assert [part.count(f'class="claim {name}"') for name in ("held", "failed")] == [1, 1]
    assert part.count('class="claim open-claim"') == 2
    assert "holds: a against b: -0.0123 nats" in part and "pangu23, Table 2" in part
    assert "claims" not in ids(render(few()))
    refuses("'claims' is damaged", render, few() | {"claims": [1]})
    wild = Tags(render(few() | {"claims": [claim(HOSTILE, HOSTILE) | {"source": HOSTILE}]}))
    calm = Tags(render(few() | {"claims": [claim("calm", "calm")]}))
    assert [tag for tag, _ in wild.tags] == [tag for tag, _ in calm.tags]


def test_a_cell_of_a_table_is_a_plain_value_or_json(tmp_path):
    tried = [{"rate": 0.003, "nats": 3.5}, {"rate": 0.01, "nats": None}]
    content = few()
    rows = [{**row, "rates": tried} for row in content["rows"]]
    save_comparison({**content, "rows": rows}, tmp_path)
    for line in table(tmp_path, "rows"):
        assert json.loads(line["rates"]) == tried
