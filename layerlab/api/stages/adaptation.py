"""Stages of an adaptation, one function each; what they refuse at once needs no torch."""

import json
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.console.status import show_status
from layerlab.console.tables import note_printer
from layerlab.data.archives import read_within_limit
from layerlab.data.sources import check_source, open_source, to_source
from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import CleanSection, EmbeddingSection
from layerlab.recipes.load import read_older_names, validate_table
from layerlab.records.parse import find_table
from layerlab.report.i18n.language import language
from layerlab.system.files import File, OnlyOwn, check_folder, write_file, write_folder
from layerlab.system.untrusted.trust import trust
from layerlab.tokenization.request import JEC_QA, WHAT, find_tokenizer, parse_size
from layerlab.validation import short_repr

if TYPE_CHECKING:
    from layerlab.adaptation.embeddings.compare_inits import EmbeddingResult
    from layerlab.data.cleaning.clean import CleaningResult
    from layerlab.data.cleaning.contamination import Contamination
    from layerlab.tokenization.vocabulary.change import VocabularyChange

EMBEDDING = "embedding.json"


@read_within_limit
@read_older_names("clean")
def clean_text(
    source: File,
    out: File,
    *,
    unicode_form: str = "NFC",
    min_chars: int = 50,
    max_chars: int = 10_000_000,
    max_broken_ratio: float = 0.005,
    max_symbol_ratio: float = 0.1,
    min_word_ratio: float = 0.8,
    max_bullet_ratio: float = 0.9,
    max_ellipsis_ratio: float = 0.3,
    max_repeated_ratio: float = 0.5,
    repetition: bool = True,
    exact_dedup: bool = True,
    near_duplicate_threshold: float = 0.8,
    field: str = "text",
    max_bytes: int | None = None,
    progress: bool = True,
) -> "CleaningResult":
    """Normalize, filter and deduplicate text into a folder, with a report of what went.

    Rules are called as in a recipe; their names of 0.1 are still read.

    Args:
        source: a file, a folder or `hf:NAME`, as in a recipe.
        out: folder for text.jsonl and report.json.
        unicode_form: Unicode normalization form: NFC, NFKC or none.
        min_chars: fewest characters of a document.
        max_chars: most characters of a document.
        max_broken_ratio: largest share of broken characters: U+FFFD and control characters.
        max_symbol_ratio: most # and ellipses per word.
        min_word_ratio: smallest share of words with a letter.
        max_bullet_ratio: largest share of lines that begin with a bullet.
        max_ellipsis_ratio: largest share of lines that end in an ellipsis.
        max_repeated_ratio: largest share of characters in repeated runs of 10.
        repetition: drop documents that repeat lines, paragraphs or words.
        exact_dedup: drop a second document of the same words.
        near_duplicate_threshold: similarity from which documents are copies; 0 keeps them.
        field: column that holds the text of a row.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.
        progress: tell on standard error how much was read.

    Raises:
        UserError: the source cannot be read, a rule cannot be, nothing is left, or the folder holds
            files of something else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text = Path(folder) / "law.txt"
        ...     _ = text.write_text("An appeal is heard by the court above the one that ruled.")
        ...     clean_text(text, Path(folder) / "clean", min_chars=20).kept
        1
    """
    from layerlab.data.cleaning.clean import clean

    given = {
        "unicode_form": unicode_form,
        "min_chars": min_chars,
        "max_chars": max_chars,
        "max_broken_ratio": max_broken_ratio,
        "max_symbol_ratio": max_symbol_ratio,
        "min_word_ratio": min_word_ratio,
        "max_bullet_ratio": max_bullet_ratio,
        "max_ellipsis_ratio": max_ellipsis_ratio,
        "max_repeated_ratio": max_repeated_ratio,
        "repetition": repetition,
        "exact_dedup": exact_dedup,
        "near_duplicate_threshold": near_duplicate_threshold,
    }
    rules = validate_table(CleanSection, given, "adapt clean")
    with show_status(progress) as tell:
        return clean(to_source(str(source), field), Path(out), rules, tell)


@read_within_limit
def find_contamination(
    source: File,
    benchmark: File | Iterable[File],
    *,
    field: str = "text",
    out: File | None = None,
    max_bytes: int | None = None,
) -> "Contamination":
    """Look for the questions of benchmarks in training text.

    Args:
        source: training text: a file, a folder or `hf:NAME`.
        benchmark: folders or files of questions, also by their place in the data folder.
        field: column that holds the text of a row.
        out: file for everything that was found, as JSON; none is written without it.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: a text or a benchmark cannot be read, there is no question, or `out` is a file of
            something else.
    """
    from layerlab.data.cleaning.benchmark_questions import questions
    from layerlab.data.cleaning.contamination import contamination
    from layerlab.data.places import find_text

    folder = None if out is None else Path(out)
    if folder is not None and (folder.is_symlink() or (folder.exists() and not _is_found(folder))):
        raise UserError(
            f"{str(folder)!r} is there already, and is no report of contamination; give another "
            "name, or move it away"
        )
    text = open_source(to_source(str(source), field))
    found = contamination(text.pieces(), questions(*map(find_text, _to_list(benchmark))))
    found = replace(found, notes=(*text.notes, *found.notes))
    if folder is not None:
        content = json.dumps(found.to_dict(), ensure_ascii=False, indent=1)
        write_file(folder, content + "\n", _is_found)
    return found


def _is_found(file: Path) -> bool:
    """Return whether a file is what an earlier search for contamination wrote."""
    return {"documents", "benchmarks", "matches"} <= find_table(file).keys()


@read_within_limit
def change_vocabulary(
    tokenizer: File,
    corpus: File | Iterable[File],
    size: str | int,
    out: File,
    *,
    against: File | Iterable[File] = (),
    terms: File | None = None,
    field: str = "text",
    lang: str = "en",
    trust_remote_code: bool = False,
    progress: bool = True,
    max_bytes: int | None = None,
) -> "VocabularyChange":
    """Extend a tokenizer on a domain's text, or cut it down, and verify it text by text.

    Args:
        tokenizer: a folder, tokenizer.json, a .model file, or a Hub name.
        corpus: text of the domain: files or folders.
        size: "+1600" adds entries, "8000" or 8000 leaves so many.
        out: folder for the tokenizer, its check and its page; what an earlier call left goes.
        against: other text to verify it on, or "jec-qa".
        terms: a file with expressions of the domain, one a line.
        field: column that holds the text of a row.
        lang: language of the page.
        trust_remote_code: run Python that a tokenizer brings along; read it before.
        progress: tell of each step on standard error.
        max_bytes: most bytes that a file may unpack to; 256 MiB, or 20 times its own size, if left
            out.

    Raises:
        UserError: the tokenizer, a text, the size or the folder is none that can be used.
    """
    language(lang)
    texts, others, size = _to_list(corpus), _to_list(against), str(size)
    check_folder(Path(out), WHAT, OnlyOwn())
    parse_size(size)
    for text in (*texts, *(one for one in others if one != JEC_QA)):
        check_source(to_source(text, field))
    if terms is not None:
        check_source(to_source(str(terms)))
    find_tokenizer(str(tokenizer))
    # Late: these need transformers, and what is refused above does not.
    from layerlab.report.pages.vocabulary import PAGE, render
    from layerlab.tokenization.vocabulary.change import PROOF, VocabularyRequest, change

    asked = VocabularyRequest(
        tokenizer=str(tokenizer),
        size=size,
        corpus=tuple(texts),
        against=tuple(others),
        terms=None if terms is None else Path(terms),
        field=field,
    )

    def draw(folder: Path) -> None:
        content = json.loads((folder / PROOF).read_text("utf-8"))
        write_file(folder / PAGE, render(content, lang))

    with trust(trust_remote_code), show_status(progress) as tell:
        return change(asked, Path(out), note_printer(progress), draw, tell)


def embed_tokenizer(
    model: str,
    tokenizer: File,
    out: File,
    *,
    input: str = "mean",
    head: str = "mean-resizing",
    text: File | Iterable[File] | None = None,
    context: int | None = None,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    load: File | Iterable[File] = (),
    trust_remote_code: bool = False,
    allow_unused: bool = False,
    progress: bool = True,
) -> "EmbeddingResult":
    """Give a model another tokenizer, and compare initialisations of the new rows.

    Args:
        model: a Hub id, a local folder, or a built-in name.
        tokenizer: the new one, as `change_vocabulary` makes it.
        out: folder for model and tokenizer; what an earlier call left there goes.
        input: initialisation of new embedding rows: mean, mean-resizing, first or random.
        head: initialisation of new head rows; a tied head follows the embedding.
        text: files to compare initialisations on; the built-in sample if left out.
        context: tokens per window; all the model can, to 1024, if left out.
        seed: of random rows.
        device: where the model is loaded.
        dtype: of the loaded weights; that of its config.json if left out.
        load: Python files with the variant of a model that layerlab has built.
        trust_remote_code: run Python that a model or tokenizer brings along; read it before.
        allow_unused: leave weights out that the model's configuration has no place for.
        progress: tell of each initialisation on standard error.

    Raises:
        UserError: the model, a tokenizer, a text or the folder is none that can be used.
    """
    from layerlab.builtin import SAMPLE
    from layerlab.loading.folders import check_found

    start = {"input": input, "head": head, "seed": seed}
    chosen = validate_table(EmbeddingSection, start, "adapt embed")
    before = check_folder(Path(out), "model", OnlyOwn())
    check_found([model])
    named = [] if text is None else _to_list(text)
    opened = [open_source(to_source(one)) for one in named or [str(SAMPLE)]]
    find_tokenizer(str(tokenizer))
    # Late: these need torch, and what is refused above does not.
    from layerlab import plugins
    from layerlab.adaptation.embeddings import compare_inits
    from layerlab.loading.model import load_model
    from layerlab.system.logs import quiet_libraries
    from layerlab.system.torch_settings import usual_arithmetic
    from layerlab.tokenization.convert import load_or_convert

    tell = note_printer(progress)
    with usual_arithmetic(), trust(trust_remote_code, allow_unused=allow_unused):
        plugins.load_files(load, [model])
        texts = {}
        for given in opened:
            for note in given.notes:
                tell(note)
            texts[given.name if named else SAMPLE.name] = compare_inits.read_sample(given)
        new, found = load_or_convert(str(tokenizer)), load_model(model, device=device, dtype=dtype)
        base = _fast(found.tokenizer, model)
        done = compare_inits.embed(found.model, base, new, texts, chosen, tell, context)

    def fill(folder: Path) -> None:
        found.model.save_pretrained(folder)
        new.save_pretrained(folder)
        kept = json.dumps(done.to_dict(), indent=1) + "\n"
        (folder / EMBEDDING).write_text(kept, encoding="utf-8")

    with quiet_libraries():
        write_folder(Path(out), fill, "model", OnlyOwn(), before)
    return done


def _fast(tokenizer: Any, name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.backend_tokenizer is not None:
        return tokenizer
    raise UserError(
        f"{short_repr(name)} has no tokenizer of the tokenizers library beside it; expected the "
        "tokenizer.json that the model was trained with in its folder"
    )


def _to_list(given: File | Iterable[File]) -> list[str]:
    """Return places as a list of texts, also where one is given alone."""
    return [str(one) for one in ([given] if isinstance(given, str | PathLike) else given)]
