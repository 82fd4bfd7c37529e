"""The page of what holds: whose claims are counted, at which scale, and what chance leaves."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

HOLDS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "holds.py"))
TITLE = HOLDS["SOURCES"]["pangu23"]
SMALL, LARGE = "1.4 M parameters, 0.31 M tokens", "1.4 M parameters, 1.2 M tokens"


def verdict(word, claim="It is so.", **changes):
    usual = {"said": "a | b", "source": "", "scale": "constructed cases", "unit": "3 seeds"}
    return {"word": word, "claim": claim, "p": None, "looked": False, **usual, **changes}


def page(contests=None, **studies):
    """The page of studies by name: each a key of a source and verdicts."""
    found = {name: {"verdicts": verdicts} for name, (_, *verdicts) in studies.items()}
    declared = {
        name: SimpleNamespace(key=key, source=f"{key}, section 1")
        for name, (key, *_) in studies.items()
    }
    late = SimpleNamespace(key="Own", source="Own")
    return HOLDS["holds"](found, {**declared, "late": late}, contests or {})


def rows(said, study):
    return [line for line in said.splitlines() if f"studies/{study}.md" in line]


def test_claims_are_counted_by_whose_they_are_and_the_counts_lead_there():
    said = page(
        a=("pangu23", verdict("holds"), verdict("fails", source="Own, on pangu23, section 1")),
        b=("pangu23", verdict("smaller than asked", "It is large.")),
        c=("Own", verdict("not decided"), verdict("fails", source="pangu23, Table 1")),
        d=("spectral25", verdict("holds", "So.", source="dong21, section 3")),
    )
    assert "6 claims in 4 studies:" in said and "Not run yet: `late`." in said
    assert f"| [{TITLE}](#pangu-pi-nonlinearity-compensation) | 1 | 1 | 1 | 0 |" in said
    assert "| **claims of the sources** | 2 | 1 | 1 | 0 |" in said
    assert "| **claims of our own** | 0 | 0 | 1 | 1 |" in said
    assert f"## {TITLE}" in said and "## Eight residual schemes" not in said
    own = next(line for line in rows(said, "a") if "*Own*" in line)
    assert "| *Own*, on pangu23, section 1 | **fails** |" in own and "a \\| b" in own


def test_the_claims_of_a_source_are_folded_below_its_heading():
    said = page(a=("pangu23", verdict("holds"), verdict("fails", "Other.")))
    head, fold = said.split(f"## {TITLE}\n\n")
    assert fold.startswith("<details markdown><summary>2 claims</summary>\n\n| claim |")
    assert "</details>" in fold and "<details" not in head


def test_a_word_from_trained_models_names_their_scale_and_others_their_kind():
    built_in = "built-in models: 0.45 M parameters, 7.4 M tokens"
    said = page(
        a=("pangu23", verdict("fails", scale=SMALL)),
        b=("pangu23", verdict("fails", "Of built-in ones.", scale=built_in, looked=True)),
        c=("pangu23", verdict("holds", "Of both.", scale=f"{built_in}, and random networks")),
    )
    assert f"| **fails** at {SMALL} | - | {SMALL}; 3 seeds |" in rows(said, "a")[0]
    assert "| **fails** at 0.45 M parameters, 7.4 M tokens † |" in rows(said, "b")[0]
    assert "| **holds** | - | built-in models: 0.45 M parameters" in rows(said, "c")[0]


def test_one_claim_at_two_scales_is_one_row_and_counts_by_the_larger():
    said = page(
        long=("pangu23", verdict("not decided", scale=LARGE, p=0.5)),
        twin=("pangu23", verdict("fails", scale=SMALL, p=0.01), verdict("holds", "Other.")),
    )
    assert "2 claims in 2 studies:" in said and "1 of them were judged at several scales" in said
    (row,) = rows(said, "long")
    assert f"| **fails** at {SMALL}<br>**not decided** at {LARGE} | 0.02<br>0.5 |" in row
    assert "[twin](studies/twin.md)<br>[long](studies/long.md)" in row
    assert "| **claims of the sources** | 1 | 0 | 0 | 1 |" in said


def test_the_page_says_that_nothing_is_corrected_and_shows_what_chance_leaves():
    tested = (verdict("fails", f"Claim {n}.", p=p) for n, p in enumerate((0.01, 0.02, 0.9, None)))
    said = " ".join(page(a=("pangu23", *tested)).split())
    assert "Nothing is corrected across studies." in said
    assert "over the 3 verdicts that rest on a test with a p. The other 1 rest on 95 % int" in said
    assert [part in said for part in ("| 0.03 |", "| 0.9 |", "| - |")] == [True] * 3


def test_a_comparison_that_is_no_study_stands_beside_the_studies_of_its_claim(tmp_path):
    claims = [{"source": "pangu23, section 1", "says": "It is so.", "verdict": "fails"}]
    claims[0] |= {"number": 1.0, "p": 0.01, "said": "fails: x", "arms": ["a"], "pairs": [{"n": 3}]}
    content = {
        "claims": claims,
        "rows": [{"arm": "a", "parameters": 51_651_072}],
        "runs": [{"arm": "a", "tokens": 17_989_632}],
        "seeds": [1, 2, 3],
    }
    for name in ("twin", "large"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(json.dumps(content))
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / "comparison.json").write_text(json.dumps({**content, "claims": []}))
    contests = HOLDS["contested"](tmp_path, {"twin": None})
    assert list(contests) == ["large"]
    said = page(contests, twin=("pangu23", verdict("not decided", scale=SMALL, p=0.5)))
    assert "1 claims in 1 studies and 1 further comparison:" in said
    (row,) = rows(said, "twin")
    scale = "52 M parameters, 18 M tokens"
    assert f"| **not decided** at {SMALL}<br>**fails** at {scale} | 0.5<br>0.02 |" in row
    assert f"{SMALL}; 3 seeds<br>{scale}; 3 seeds | a \\| b<br>x |" in row
    assert "[twin](studies/twin.md)<br>[large](results/README.md#large)" in row
    assert "| **claims of the sources** | 0 | 0 | 1 | 0 |" in said
