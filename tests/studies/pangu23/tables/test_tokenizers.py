"""The tokenizer table: vocabularies in the source's proportions, and words for counts by hand."""

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layerlab.errors import DamageWarning
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables import law_vocabularies
from layerlab.studies.pangu23.tables.law_vocabularies import (
    BASE,
    EQUAL,
    EXTENDED,
    KINDS,
    LARGER,
    check_counts,
    locate_counts,
    rate_rows,
    sizes,
)
from layerlab.studies.pangu23.tables.tokenizers import (
    LEARNED,
    READ,
    STUDY,
    at_hand,
    code,
    judge_lower,
    judge_monotone,
    judge_of_domain,
    judge_on_par,
    judge_statutes,
    ratio,
    vocabularies,
)
from layerlab.tokenization import published_rates
from layerlab.tokenization.train import train_fallback_bpe
from tests.support.refused import refuses


def test_sizes_stand_to_each_other_as_in_the_table():
    found = sizes(100_883)
    assert found == {BASE: 100_883, EXTENDED: 110_428, EQUAL: 110_428, LARGER: 125_696}
    assert sizes(1024)[EXTENDED] == round(1024 * 1.094614)


@pytest.mark.full
def test_vocabularies_have_their_sizes_and_the_extended_one_begins_as_the_base():
    found = vocabularies(512)
    assert {kind: len(words) for kind, words in found.items()} == sizes(512)
    base, extended = (found[kind].get_vocab() for kind in (BASE, EXTENDED))
    assert base.items() <= extended.items()
    # No text gets longer by the extension.
    text = code("shutil")[:2000]
    assert len(found[EXTENDED](text)["input_ids"]) <= len(found[BASE](text)["input_ids"])


def test_nothing_is_counted_that_was_learned_from():
    assert not {name.partition(".")[0] for name in LEARNED} & set(READ)
    assert len(set(READ)) == len(READ) == 24
    assert "class Event" in code("asyncio") and "def copyfile" in code("shutil")


def test_a_module_without_source_is_told():
    refuses("no source of sys; expected an installation", code, "sys")


def counts(base, extended, equal, larger):
    """Files of different lengths that all have these tokens for each hundred."""
    length = np.arange(1, 13, dtype=float)[:, None]
    return length * np.array([[base, extended, equal, larger]], dtype=float)


def test_words_follow_the_counts():
    tokens = counts(100, 90, 97, 95)
    assert KINDS == (BASE, EXTENDED, EQUAL, LARGER)
    assert [judge(tokens, 0).word for judge in (judge_lower, judge_on_par, judge_of_domain)] == [
        "holds"
    ] * 3
    assert judge_lower(tokens, 0).number == pytest.approx(0.9)
    assert ratio(tokens, EXTENDED, LARGER, 0).value == pytest.approx(90 / 95)
    tokens = counts(100, 99, 97, 95)
    assert [judge(tokens, 0).word for judge in (judge_lower, judge_on_par, judge_of_domain)] == [
        "smaller than asked",
        "fails",
        "fails",
    ]


def test_files_count_by_their_length():
    tokens = np.array([[100.0, 50, 1, 1], [900, 900, 1, 1]])
    assert ratio(tokens, EXTENDED, BASE, 0).value == pytest.approx(950 / 1000)


def test_one_pair_of_the_printed_table_is_out_of_order():
    found = judge_monotone()
    # 0.649 with 100,883 entries stands before 0.657 with 103,168.
    assert found.word == "fails" and found.number == 1 and "1 of 10 pairs" in found.said
    assert "PanGu" in found.said and "InternLM" in found.said


def test_a_measured_rate_stands_beside_the_printed_one(monkeypatch):
    monkeypatch.setattr(published_rates, "questions", lambda: ["a question"])
    monkeypatch.setattr(published_rates, "tokenizers_here", lambda: ({}, {"other": "why"}))
    rows = [
        published_rates.Rate("internlm", 103_168, 0.6570),
        published_rates.Rate("gpt2", 50_257, 2.0),
    ]
    monkeypatch.setattr(published_rates, "measure_rates", lambda words, texts: rows)
    found, told = at_hand()
    assert [one["of"] for one in found] == ["JEC-QA"] * 2
    assert "internlm takes 0.657" in told[0] and "1.000 of it" in told[0]
    assert told[1:] == ["Not read: other."]


def test_without_the_questions_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    assert at_hand() == ([], ["JEC-QA is not at hand: nothing was measured on it."])


WORDS = (judge_lower, judge_statutes, judge_on_par, judge_of_domain)
STORED = Path(__file__).resolve().parents[4] / "docs" / "results"
STATUTE = "第{0}条 人民法院审理案件，应当依照法律规定公开进行，上诉人可以在{1}日内上诉。\n"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A data folder of our own, and sizes that it can give."""
    folder = tmp_path / "data"
    for name in ("zh-law-statutes", "zh-general", "brown", "agieval", "tokenizers/internlm"):
        (folder / name).mkdir(parents=True)

    def pack(place, files):
        with tarfile.open(folder / place, "w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))

    statutes = {f"{n:02}.md": "".join(STATUTE.format(n, k) for k in range(40)) for n in range(12)}
    pack("zh-law-statutes/statutes.tar.gz", statutes)
    rows = [{"question": STATUTE.format(n, 7), "options": ["(A)对", "(B)错"]} for n in range(30)]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    names = ("v1/jec-qa-kd.jsonl", "v1/jec-qa-ca.jsonl")
    pack("agieval/agieval-v1.tar.gz", dict.fromkeys(names, lines))
    wiki = [f"长江是中国第{n}大河，全长{n * 7}千米，流经许多省。\n" for n in range(90)]
    (folder / "zh-general" / "cn_wiki_sample.txt").write_text("\n".join(wiki))
    with gzip.open(folder / "brown" / "brown.txt.gz", "wt") as file:
        file.write("\n".join(f"The jury said on Friday number {n} of it.\n" for n in range(90)))
    train_fallback_bpe([*wiki[:3], "The jury"], vocab=290).save_pretrained(
        folder / "tokenizers" / "internlm"
    )
    wanted = {BASE: 285, EXTENDED: 293, EQUAL: 293, LARGER: 296}
    monkeypatch.setattr(law_vocabularies, "sizes", lambda base=None: wanted)
    monkeypatch.setenv("LAYERLAB_DATA", str(folder))
    return folder


@pytest.mark.full
def test_law_is_counted_from_the_data_folder_and_judged_again_from_what_was_kept(small, tmp_path):
    found = law_vocabularies.count_law()
    check_counts(found)
    assert found["entries"][BASE] == 285 and found["entries"][EXTENDED] == 293
    assert found["borrowed"] == 290
    assert list(map(len, found["tokens"]["JEC-QA"])) == [60] * 4
    assert found["learned"][0] == 6 and len(found["characters"]["statutes"]) == 6
    base, extended, equal, _ = np.array(found["tokens"]["statutes"]).sum(1)
    assert extended < equal <= base, "entries of the domain are worth more on its text"
    write_kept(tmp_path / "kept.json", found)
    kept = read_kept(tmp_path / "kept.json", check_counts)
    assert rate_rows(kept) == rate_rows(found)
    rates = {(row["of"], row["tokenizer"]): row["rate"] for row in rate_rows(found)}
    assert rates["statutes, internlm", EXTENDED] == pytest.approx(
        extended / sum(found["characters"]["statutes"])
    )


def test_without_the_borrowed_tokenizer_or_the_law_one_line_says_so(small):
    shutil.rmtree(small / "tokenizers")
    refuses("the tokenizer internlm is not here", law_vocabularies.count_law)
    shutil.rmtree(small / "zh-law-statutes")
    refuses("law-zh is not here", law_vocabularies.count_law)


def test_nothing_is_decided_where_no_law_was_counted():
    for judge in WORDS:
        found = judge(None, 0)
        assert found.word == "not decided" and "no law was counted" in found.said


def test_the_stored_counts_are_of_the_sizes_of_the_source():
    found = read_kept(locate_counts(STORED), check_counts)
    assert found is not None
    entries = found["entries"]
    assert (entries[BASE], entries[EXTENDED], entries[LARGER]) == (100_883, 110_428, 125_696)
    assert [len(one) for one in found["tokens"]["JEC-QA"]] == [2000] * 4


@pytest.mark.full
def test_counts_that_were_changed_do_not_count(tmp_path):
    file = locate_counts(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text(locate_counts(STORED).read_text().replace("100883", "100884"))
    with pytest.warns(DamageWarning, match="does not count"):
        found = study(STUDY.name, fast=True, runs=tmp_path, progress=False, threads=1)
    assert found.verdicts[0]["word"] == "not decided"
    assert any("Law was not counted" in one for one in found.to_dict()["remarks"])


def test_what_was_counted_without_its_texts_is_not_what_they_give(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    seen = [STUDY.inputs(tmp_path)]
    for name in (published_rates.ARCHIVE, "tokenizers/internlm/tokenizer.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
        seen.append(STUDY.inputs(tmp_path))
    assert len({str(one) for one in seen}) == 3
