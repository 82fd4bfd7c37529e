"""A vocabulary extended on law: speed on a large tokenizer, and three ways to extend a small one.

`trainer` shows it beside the tokenizers library's own trainer, which learns as many entries from
nothing: on law, and on made-up words, of which a fourth is distinct.

The ways are the continued BPE of `layerlab.adaptation`, `add_tokens` of the transformers library,
and the vocabulary and merges of a BPE that was trained on the domain alone, behind those of the
base. The base is a byte-level BPE trained here on general text; law is LawBench without the tasks
that derive from JEC-QA.

    python bench/adaptation/vocabulary.py [speed] [ways] [trainer]
"""

# ruff: noqa: E402
import sys

# Files here share names with modules of the standard library, which others must still find.
del sys.path[0]

import csv
import gzip
import io
import json
import random
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from transformers import PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.data.places import data_folder
from layerlab.tokenization.bpe_file import read_bpe, rebuild
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.load import engine, train_tokenizer
from layerlab.tokenization.published_rates import questions
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.verify import VocabularyCheck, verify

BASE, ADDED = 16_000, 1_600
HELD, LAW_HELD = 1_500, 800
LAW_MOST, MINUTES, MEGABYTES = 0.775, 3.0, 100
SHARE = 0.1
MADE = 5_000_000
# The target is set for a tokenizer as large as that of the source.
LARGE = 100_000
# Tasks of LawBench that derive from JEC-QA.
DERIVED = {"1-2", "3-6"}


def members(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files in an archive."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield name, archive.read(name).decode("utf-8-sig", "replace")
        return
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read().decode("utf-8-sig", "replace")


def law_rows() -> list[str]:
    """Return the questions and answers of LawBench."""
    found = []
    for name, text in members(data_folder() / "lawbench" / "zero_shot.tar.gz"):
        if name.endswith(".json") and Path(name).stem not in DERIVED:
            found += [f"{row['question']}\n{row['answer']}" for row in json.loads(text)]
    return found


def statutes() -> list[str]:
    """Return Chinese statutes and judicial interpretations."""
    folder = data_folder() / "zh-law-statutes"
    files = ("statutes.tar.gz", "judicial-interpretations-40.tar.gz")
    return [text for file in files for name, text in members(folder / file) if name.endswith(".md")]


def general_rows() -> list[str]:
    """Return paragraphs and questions in Chinese and English that are not about law."""
    folder, found = data_folder(), []
    for text in (
        gzip.open(folder / "brown" / "brown.txt.gz", "rt", encoding="utf-8").read(),
        (folder / "zh-general" / "cn_wiki_sample.txt").read_text("utf-8"),
        (folder / "wikitext-2" / "valid.txt").read_text("utf-8"),
    ):
        found += [one for one in text.split("\n") if len(one) > 40]
    for file in ("ceval/ceval.zip", "cmmlu/cmmlu.tar.gz", "mmlu/mmlu.zip"):
        for name, text in members(folder / file):
            if name.endswith(".csv") and "law" not in name and "legal" not in name:
                found += ["\n".join(row) for row in csv.reader(io.StringIO(text))]
    for name, text in members(folder / "agieval" / "agieval-v1.tar.gz"):
        if name.endswith(".jsonl") and "jec" not in name:
            rows = map(json.loads, text.splitlines())
            found += [f"{row.get('passage') or ''}{row['question']}" for row in rows]
    return found


def fresh(base: PreTrainedTokenizerFast, texts: list[str]) -> tuple[list[str], list[tuple]]:
    """Return the first tokens that a base lacks of a BPE of the domain alone, and its merges."""
    own = read_bpe(train_tokenizer(texts, BASE))
    known = read_bpe(base).vocab
    tokens = sorted(own.vocab.keys() - known.keys(), key=own.vocab.__getitem__)[:ADDED]
    usable = {*known, *tokens}
    merges = [pair for pair in own.merges if {*pair, "".join(pair)} <= usable]
    return tokens, merges


def added(base: PreTrainedTokenizerFast, tokens: list[str]) -> PreTrainedTokenizerFast:
    """Return the base with the domain's tokens, searched in a text before it is cut into words."""
    found = rebuild(base, read_bpe(base).engine(read_bpe(base).vocab, read_bpe(base).merges))
    decoder = found.backend_tokenizer.decoder
    texts = [decoder.decode([token]) for token in tokens]
    found.add_tokens([text for text in texts if "\ufffd" not in text])
    return found


def appended(
    base: PreTrainedTokenizerFast, tokens: list[str], merges: list[tuple]
) -> PreTrainedTokenizerFast:
    """Return the base with another vocabulary behind it, and with the merges of that."""
    found = read_bpe(base)
    vocab, known = dict(found.vocab), set(found.merges)
    for token in tokens:
        vocab[token] = len(vocab)
    every = [*found.merges, *(pair for pair in merges if pair not in known)]
    return rebuild(base, found.engine(vocab, every))


def unseen(base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, texts: list[str]) -> int:
    """Count the new tokens that occur in none of the texts."""
    found = engine(new).encode_batch_fast(texts, add_special_tokens=False)
    used = {number for one in found for number in one.ids}
    known = base.get_vocab()
    return sum(n not in used for token, n in new.get_vocab().items() if token not in known)


def ways(line: Any) -> None:
    """Print the set-up of the comparison, and its table."""
    draw = random.Random(0)
    general, law = general_rows(), law_rows()
    draw.shuffle(general)
    draw.shuffle(law)
    held, general = general[:HELD], general[HELD:]
    law_held, law = law[:LAW_HELD], law[LAW_HELD:]
    size = sum(map(len, general))
    print(f"\nbase: {BASE:,} entries from {len(general):,} texts, {size:,} characters")
    base = train_tokenizer(general, BASE)
    tokens, merges = fresh(base, law)
    begun = time.perf_counter()
    new = extend(base, law, ADDED)
    took = time.perf_counter() - begun
    size = sum(map(len, law))
    print(f"+{ADDED:,} from {len(law):,} texts of law, {size:,} characters, in {took:.1f} s")
    sets = {"law": law_held, "jec-qa": questions(), "general": held}
    proofs: dict[str, VocabularyCheck] = {}
    print(f"{'':16} law    jec-qa general | lost law/general | out of reach | unused in training")
    for name, words in {
        "add_tokens": added(base, tokens),
        "appended": appended(base, tokens, merges),
        "continued": new,
    }.items():
        proof = proofs[name] = verify(base, words, sets)
        ratios = "  ".join(f"{one.ratio:.4f}" for one in proof.tallies)
        lost = f"{proof.tallies[0].broken} / {proof.tallies[2].broken}"
        unused = unseen(base, words, law)
        print(f"{name:16} {ratios} | {lost:>16} | {len(proof.unreachable):12} | {unused:6}")
        changed = [f"{one.changed}/{one.base.texts}" for one in proof.tallies]
        joined = [f"{one.coarser}/{one.base.texts}" for one in proof.tallies]
        longer = [one.longer for one in proof.tallies]
        print(f"{'':16} changed {changed}, longer {longer}, only joined {joined}")
    proof = proofs["continued"]
    line("law tokens over the base's", proof.tallies[0].ratio, LAW_MOST)
    line("tokens out of reach", len(proof.unreachable), 0)
    line("texts longer than before", sum(one.longer for one in proof.tallies), 0)
    line("texts that do not come back", sum(one.broken for one in proof.tallies), 0)


def speed(line: Any) -> None:
    """Print the time for 100 MB, extrapolated from the law text that there is.

    Judged is the time of one processor: what the clock says depends on what else a machine does.
    """
    texts = [*law_rows(), *statutes()]
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"\n{len(texts):,} texts of law, {size:.1f} MB")
    for name in ("internlm", "gpt2"):
        try:
            base = load_or_convert(str(data_folder() / "tokenizers" / name))
        except UserError as error:
            print(f"{name} is left out: {error}")
            continue
        entries = round(len(base) * SHARE)
        begun, worked = time.perf_counter(), time.process_time()
        new = extend(base, texts, entries)
        took, used = time.perf_counter() - begun, time.process_time() - worked
        begun = time.perf_counter()
        proof = verify(base, new, {"law": texts[: len(texts) // 10], "jec-qa": questions()})
        proved = time.perf_counter() - begun
        ratios = ", ".join(f"{one.name} {one.ratio:.4f}" for one in proof.tallies)
        parted = f"{size / took:.2f} MB/s by the clock, {size / used:.2f} of a processor"
        print(
            f"{name} of {len(base):,} entries +{entries:,}: {took:.1f} s ({used:.1f} s of "
            f"processor): {parted}; proof of a tenth {proved:.1f} s; {ratios}; "
            f"holds: {proof.holds}"
        )
        minutes = used / size * MEGABYTES / 60
        if len(base) < LARGE:
            print(f"{name}: {minutes:.1f} minutes of a processor for {MEGABYTES} MB")
        else:
            line(f"{name}: minutes of a processor for {MEGABYTES} MB", minutes, MINUTES)


def made_up(size: int) -> list[str]:
    """Return lines of words that no language has, each in several of them."""
    draw, letters = random.Random(0), "abcdefghijklmnoprstuvw"
    words = ["".join(draw.choices(letters, k=draw.randint(4, 12))) for _ in range(size // 36)]
    found, done = list[str](), 0
    while done < size:
        found.append(" ".join(draw.choices(words, k=16)))
        done += len(found[-1]) + 1
    return found


def trainer(line: Any) -> None:
    """Print the times of extending a tokenizer and of the library's trainer, side by side."""
    law = law_rows()
    base = load_or_convert(str(data_folder() / "tokenizers" / "gpt2"))
    ways = {
        "extended": lambda texts: extend(base, texts, ADDED),
        "trained": lambda texts: train_tokenizer(texts, ADDED + 257),
    }
    for name, texts in {"law": law, "made up": made_up(MADE)}.items():
        size = sum(len(text.encode()) for text in texts) / 1e6
        print(f"\n{name}: {size:.1f} MB, {ADDED:,} entries")
        for way, work in ways.items():
            begun, worked = time.perf_counter(), time.process_time()
            work(texts)
            took, used = time.perf_counter() - begun, time.process_time() - worked
            print(f"  {way:8} {took:6.1f} s by the clock, {used:6.1f} s of a processor")


def main() -> None:
    missed = []

    def line(what: str, value: float, most: float) -> None:
        well = value <= most
        missed.extend([] if well else [what])
        print(f"{'ok  ' if well else 'MISS'} {what}: {value:.4g}, at most {most:g}")

    wanted = sys.argv[1:] or ["ways", "speed"]
    for name in wanted:
        {"ways": ways, "speed": speed, "trainer": trainer}[name](line)
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
