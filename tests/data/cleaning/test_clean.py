"""Documents are normalized, filtered and kept once; what went is told with its reason."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.adaptation.pipeline.texts import clean_texts
from layerlab.data.cleaning import deduplication
from layerlab.data.cleaning.assessment import BATCH, SHINGLE
from layerlab.data.cleaning.clean import KEEP_ALL, Cleaner, clean
from layerlab.data.cleaning.deduplication import NearDuplicates, hash_words, sketch
from layerlab.data.cleaning.ngrams import dense, first_places, join_units, keys, units, windows
from layerlab.data.cleaning.repetition_filters import WINDOW, MaxShares, again, repeated_shares, top
from layerlab.data.places import data_folder
from layerlab.data.sources import TextChunk
from layerlab.recipes.adaptation import make_recipe
from layerlab.recipes.adaptation_sections import CleanSection
from layerlab.recipes.load import validate_table
from layerlab.recipes.training_sections import Source
from tests.support.refused import refuses

FREE = KEEP_ALL.model_copy(update={"unicode_form": "NFC", "min_chars": 1, "exact_dedup": True})
PLAIN = CleanSection(min_chars=1, near_duplicate_threshold=0)
texts = st.text(st.sampled_from("ab cd民法典。,\n"), max_size=60)


def prose(seed: int, count: int = 80) -> str:
    """Words that hardly repeat."""
    draw = random.Random(seed)
    return " ".join(
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 8)))
        for _ in range(count)
    )


def repeated_share(found, sizes, size: int, window: int = 10**9) -> float:
    (share,) = repeated_shares(found, sizes, [size], window)
    return share


def nearby(found, sizes, size: int) -> float:
    return repeated_share(found, sizes, size, WINDOW)


def passed(rules: CleanSection, *documents: str) -> tuple[list[str], Cleaner]:
    cleaner = Cleaner(rules)
    return list(cleaner.clean(TextChunk(text, True) for text in documents)), cleaner


def test_units_are_words_and_single_characters():
    assert units("《民法典》Article 12, 第3条 don’t") == [
        *("民", "法", "典", "article", "12", "第", "3", "条", "don", "t")
    ]
    assert units("ＡＢＣ　ｱｲｳ") == ["abc", "ア", "イ", "ウ"]
    assert units("ジョン・スミス") == units("ジョンスミス") == [*"ジョンスミス"]
    assert join_units(units("民法典 is new 法")) == "民法典 is new 法"
    assert dense(["民", "法", "x"]) and not dense(["a", "民"]) and not dense([])


@given(st.lists(st.sampled_from(["a", "b", "民"]), max_size=30), st.integers(1, 12))
def test_windows_are_equal_where_their_units_are(parts, size):
    found = windows(keys(parts), size).tolist()
    runs = [tuple(parts[at : at + size]) for at in range(len(parts) - size + 1)]
    assert len(found) == len(runs)
    assert len(set(found)) == len(set(runs))
    assert len(set(zip(found, runs, strict=True))) == len(set(runs))


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=40))
def test_each_number_is_found_where_it_stands_first(numbers):
    import numpy as np

    found = first_places(np.array(numbers, np.uint64))
    assert found.tolist() == [numbers.index(one) for one in numbers]


@settings(max_examples=80)
@given(st.lists(st.sampled_from("ab"), max_size=70), st.integers(1, 40))
def test_the_shares_of_several_lengths_and_windows_are_those_of_each_alone(parts, window):
    import numpy as np

    found, sizes, lengths = keys(parts), np.ones(len(parts), np.int64), [1, 2, 4, 5, 9]
    shares = list(repeated_shares(found, sizes, lengths, window))
    cuts = [slice(at, at + window) for at in range(0, len(parts), window)]
    for length, share in zip(lengths, shares, strict=True):
        each = [repeated_share(found[cut], sizes[cut], length) * len(found[cut]) for cut in cuts]
        assert share == pytest.approx(sum(each) / max(1, len(parts)))


@settings(max_examples=80)
@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=25), st.integers(1, 5))
def test_shares_of_runs_are_those_of_a_literal_count(parts, size):
    import numpy as np

    found, sizes = keys(parts), np.array([len(part) for part in parts], np.int64)
    runs = [tuple(parts[at : at + size]) for at in range(len(parts) - size + 1)]
    covered: set[int] = set()
    for at, one in enumerate(runs):
        if one in runs[:at]:
            covered.update(range(at, at + size))
    total = sum(map(len, parts))
    wanted = sum(len(parts[at]) for at in covered) / total if runs else 0.0
    assert repeated_share(found, sizes, size) == pytest.approx(wanted)
    counts = Counter(runs)
    most = max(counts.values(), default=0)
    longest = max((sum(map(len, one)) for one, n in counts.items() if n == most), default=0)
    share = min(1.0, most * longest / total) if most > 1 else 0.0
    assert top(found, sizes, size) == pytest.approx(share)


def test_a_long_text_is_not_blamed_for_its_length():
    import numpy as np

    parts = [prose(seed, 1) + str(seed) for seed in range(950)]
    phrase = [prose(1, 1), *parts[:20]]
    found = keys([*parts, *phrase, *phrase])
    sizes = np.full(len(found), 4)
    assert nearby(found[:1000], sizes[:1000], 5) == repeated_share(found[:1000], sizes[:1000], 5)
    apart = [one for at in range(0, 950, 50) for one in [*parts[at : at + 50], *parts[:2]]]
    assert nearby(keys(parts), sizes[:950], 5) == 0.0 == nearby(keys([]), sizes[:0], 5)
    twice = keys([*apart, *(f"new{at}" for at in range(1000 - len(apart) % 1000)), *apart])
    same = np.ones(len(twice), np.int64)
    assert repeated_share(twice, same, 5) > 0.3 > 0.01 > nearby(twice, same, 5)


def test_repeated_lines_are_counted_by_number_and_by_size():
    assert again([]) == (0.0, 0.0) and again(["a"] * 4) == (0.75, 0.75)
    assert MaxShares().find_exceeded(prose(1)) is None
    lines = "\n".join([prose(2, 9)] * 4 + [prose(seed, 9) for seed in range(3, 7)])
    assert MaxShares().find_exceeded(lines) == "repeated lines 0.38 > 0.30"
    long = "\n".join([prose(2, 90)] * 2 + [prose(seed, 5) for seed in range(3, 9)])
    assert "characters in repeated lines" in str(MaxShares().find_exceeded(long))
    runs = MaxShares().find_exceeded((prose(1, 6) + " ") * 12)
    assert runs is not None and "words" in runs
    chinese = MaxShares().find_exceeded("甲乙丙丁戊己庚辛壬癸子丑" * 9)
    assert chinese is not None and "characters" in chinese
    repeats = MaxShares(lines=1, line_characters=1, paragraphs=1, paragraph_characters=1, top={})
    assert "repeated runs of 5 words" in str(repeats.find_exceeded((prose(1, 40) + "\n") * 2))


@settings(max_examples=80)
@given(st.lists(texts, max_size=12))
def test_everything_read_is_kept_or_has_a_reason(documents):
    kept, cleaner = passed(PLAIN, *documents)
    report = cleaner.report("x")
    assert report.documents == len(documents)
    assert report.kept + sum(one.documents for one in report.removed.values()) == len(documents)
    assert report.bytes == sum(len(text.encode()) for text in documents)
    assert report.kept == len(kept) and report.kept_bytes == sum(len(one.encode()) for one in kept)
    # Twice cleaned is once cleaned.
    assert passed(PLAIN, *kept)[0] == kept
    assert all(len(one.samples) <= 3 for one in report.removed.values())


def test_reasons_come_with_samples():
    same = prose(1)
    documents = [
        "short",
        same,
        prose(2),
        same.replace(" ", "\n"),
        prose(3, 12),
        "\ud800" * 60,
        "spam " * 99,
    ]
    kept, cleaner = passed(CleanSection(max_chars=85 * 9, near_duplicate_threshold=0), *documents)
    assert kept == [same, prose(2), prose(3, 12)]
    reasons = {name: one.samples[0]["why"] for name, one in cleaner.removed.items()}
    assert reasons["too short"] == "5 characters < 50"
    assert reasons["exact duplicate"] == "the same as 2"
    assert reasons["broken"] == "half of a surrogate pair"
    assert cleaner.removed["repetition"].samples[0]["document"] == 7
    long = passed(CleanSection(max_chars=100), "x" * 101)[1].removed["too long"]
    assert long.samples[0]["why"] == "more than 100 characters"


def test_unicode_is_normalized_as_asked():
    given = ["u\u0308ber", "ＡＢＣ"]
    for form, wanted in {"NFC": ["über", "ＡＢＣ"], "NFKC": ["über", "ABC"], "none": given}.items():
        kept, cleaner = passed(
            CleanSection(
                unicode_form=form, min_chars=1, repetition=False, near_duplicate_threshold=0
            ),
            *given,
        )
        assert kept == wanted
        assert cleaner.changed == sum(a != b for a, b in zip(given, wanted, strict=True))


def test_long_documents_come_in_pieces_and_are_not_held():
    pieces = [
        TextChunk("a b", True),
        TextChunk("c d", False),
        *(TextChunk("x" * 50, n == 0) for n in range(9)),
    ]
    cleaner = Cleaner(
        CleanSection(min_chars=1, max_chars=100, repetition=False, near_duplicate_threshold=0)
    )
    assert list(cleaner.clean(pieces)) == ["a bc d"]
    assert cleaner.removed["too long"].documents == 1
    assert cleaner.removed["too long"].bytes == 150, "what comes after is passed over"


@pytest.mark.parametrize("script", ["words", "chinese"])
def test_near_copies_go_and_others_stay(script):
    draw = random.Random(5)
    if script == "words":
        parts = [prose(seed, 1) + str(seed) for seed in range(300)]
        glue = " "
    else:
        parts = [chr(0x4E00 + one) for one in draw.sample(range(20_000), 300)]
        glue = ""
    close, far = list(parts), list(parts)
    close[150] = "changed" if glue else "变"
    for place in range(0, 300, 4):
        far[place] = f"new{place}" if glue else chr(0x3400 + place)
    near = NearDuplicates(0.8)
    assert near.place(sketch(glue.join(parts), SHINGLE), 1) is None
    found = near.place(sketch(glue.join(close), SHINGLE), 2)
    # 5 of 296 shingles differ on either side.
    assert found is not None and found[0] == 1 and found[1] == pytest.approx(291 / 301, abs=0.1)
    assert near.place(sketch(glue.join(far), SHINGLE), 3) is None
    assert sketch("too few", SHINGLE) is None


def test_no_random_number_is_missed_that_a_library_has_drawn():
    before = random.getstate()
    NearDuplicates(0.8)
    assert random.getstate() == before


def test_few_pairs_above_the_threshold_are_missed():
    near, found = NearDuplicates(0.8), 0
    for number in range(60):
        parts = [f"{number}w{place}" for place in range(400)]
        close = [f"new{one}" if place % 64 == 25 else one for place, one in enumerate(parts)]
        assert near.place(sketch(" ".join(parts), SHINGLE), 2 * number) is None
        found += near.place(sketch(" ".join(close), SHINGLE), 2 * number + 1) is not None
    # Of 396 shingles 30 differ on either side: 366 / 426 = 0.86.
    assert found >= 57


@pytest.mark.parametrize("share", [0.01, 0.97, 1])
def test_every_similarity_can_be_asked_for(share):
    near = NearDuplicates(share)
    assert near.place(sketch(prose(1), SHINGLE), 1) is None
    assert near.place(sketch(prose(2), SHINGLE), 2) is None
    assert near.place(sketch(prose(1), SHINGLE), 3) == (1, 1.0)


def test_an_exact_copy_is_one_of_words():
    assert hash_words("a  b\n") == hash_words("a b") != hash_words("ab")
    kept, cleaner = passed(FREE, "a  b\n", "a b", "ab", "a b")
    assert kept == ["a  b\n", "ab"]
    assert [one["why"] for one in cleaner.removed["exact duplicate"].samples] == [
        "the same as 1"
    ] * 2


def test_how_much_was_read_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("layerlab.data.cleaning.clean.TOLD", 2)
    rows = [json.dumps({"text": prose(seed)}) for seed in range(5)]
    (tmp_path / "law.jsonl").write_text("\n".join(rows), encoding="utf-8")
    told: list[tuple[str, float]] = []
    clean(tmp_path / "law.jsonl", tmp_path / "out", tell=lambda *said: told.append(said))
    name = tmp_path / "law.jsonl"
    assert told == [(f"reading {name}, {number} documents so far", 0.0) for number in (2, 4)]


def test_a_source_becomes_a_folder(tmp_path):
    (tmp_path / "law.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in (prose(1), prose(1), "民法典" * 2))
    )
    out = tmp_path / "out"
    found = clean(tmp_path / "law.jsonl", out, CleanSection(min_chars=20))
    rows = [json.loads(line)["text"] for line in (out / "text.jsonl").read_text().splitlines()]
    assert rows == [prose(1)] and found.file == out / "text.jsonl"
    report = json.loads((out / "report.json").read_text())
    assert report == json.loads(json.dumps(found.to_dict()))
    assert report["rules"]["repetition"]["top"]["2"] == 0.2
    assert report["removed"]["exact duplicate"]["documents"] == 1
    assert clean(out / "text.jsonl", tmp_path / "again").kept == 1
    clean(tmp_path / "law.jsonl", out)  # an earlier one may be replaced
    assert found.table().row_count == 4


def test_only_so_much_is_read_as_is_asked_for(tmp_path):
    file = tmp_path / "law.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("ab", "被告", "cd")))
    for limit, wanted in {
        2: ["ab"],
        7: ["ab", "被"],
        8: ["ab", "被告"],
        99: ["ab", "被告", "cd"],
    }.items():
        clean(Source(text=str(file), limit=limit), tmp_path / "out", FREE)
        kept = (tmp_path / "out" / "text.jsonl").read_text().splitlines()
        assert [json.loads(line)["text"] for line in kept] == wanted


@pytest.mark.full
def test_a_recipe_without_rules_keeps_every_text_however_long(tmp_path):
    (tmp_path / "a.txt").write_text("a" * (CleanSection().max_chars + 1))
    (tmp_path / "b.jsonl").write_text('{"text": "half \\ud800"}\n{"text": "b"}\n')
    texts = [{"text": str(tmp_path / name)} for name in ("a.txt", "b.jsonl")]
    recipe = make_recipe({"base": {"model": "pre-norm"}, "data": {"domain": texts}})
    first, second = clean_texts(recipe, tmp_path / "out", lambda said, share: None)["sources"]
    assert (first["kept"], first["removed"]) == (1, {})
    assert second["kept"] == 1 and second["removed"].keys() == {"broken"}


def test_what_is_left_of_nothing_is_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(UserError, match=r"nothing is left of .* \(1 too short\) after cleaning"):
        clean(tmp_path / "a.txt", tmp_path / "out")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(UserError, match=r"\(it holds no text\) after cleaning; relax the rules"):
        clean(tmp_path / "b.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept.txt").write_text("")
    with pytest.raises(UserError, match="holds something other than a cleaned text"):
        clean(tmp_path / "a.txt", tmp_path / "mine", FREE)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"unicode_form": "NFD"}, "expected 'NFC', 'NFKC' or 'none'"),
        ({"near_duplicate_threshold": 2.0}, "expected a number from 0 to 1"),
        ({"min_chars": 9, "max_chars": 8}, "9 to 8 characters cannot be; expected min_chars <="),
    ],
)
def test_rules_that_cannot_be_are_refused(rules, said):
    refuses(said, validate_table, CleanSection, rules, "a test")


@pytest.mark.full
def test_several_processes_find_what_one_finds(monkeypatch):
    monkeypatch.setattr("layerlab.data.cleaning.assessment.BATCH", 20_000)
    draw = random.Random(0)
    every = [prose(draw.randrange(60), draw.randint(5, 200)) for _ in range(300)]
    every += ["\x00" * 100, "x" * (BATCH + 1), "#" * 90, "\ud800 half"]
    draw.shuffle(every)
    shared, cleaner = passed(CleanSection(max_chars=BATCH), *every)
    monkeypatch.setattr("layerlab.data.cleaning.process_map._count_processes", lambda: 1)
    alone, expected = passed(CleanSection(max_chars=BATCH), *every)
    assert shared == alone and 20 < len(alone) < 250
    assert cleaner.report("text") == expected.report("text") and len(expected.removed) > 4


def test_without_datasketch_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr(deduplication, "find_spec", lambda name: None)
    refuses("near duplicates are found by datasketch, which is not", Cleaner)
    Cleaner(FREE)


@pytest.mark.full
def test_chinese_wiki_text_mostly_stays(tmp_path):
    file = data_folder() / "zh-general" / "cn_wiki_sample.txt"
    if not file.is_file():
        pytest.skip(f"LAYERLAB_DATA names no folder with {file.parent.name}/{file.name}")
    found = clean(Source(text="wiki-zh", limit=300_000), tmp_path / "out")
    assert found.documents > 10 and found.kept_bytes > 0.9 * found.bytes, found.to_dict()
