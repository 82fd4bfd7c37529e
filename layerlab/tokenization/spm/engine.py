"""Builds the engine of a fast tokenizer that cuts a text as a SentencePiece model does."""

import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from layerlab.errors import UserError
from layerlab.tokenization.spm.model_file import CONTROL, DEFINED, NORMAL, SPACE, UNIGRAM, UNKNOWN
from layerlab.validation import short_repr

# A piece that stands for a byte, where it is a text: a lookup would take it for the byte.
BYTE_PIECE = "<(?=0x[0-9A-F]{2}>)"


def build_engine(proto: Any, path: Path) -> Tokenizer:
    """Build an engine with the pieces, the rules for spaces and the tokens of a model.

    Scores become the order of merges, so that merges which come later rank below all of them, as
    pieces with scores below its least would. The library's own conversion goes by the order of the
    pieces, which need not be that of their scores.

    Raises:
        UserError: the model has user-defined symbols, and pieces that its merges do not make.
    """
    engine = Tokenizer(_unigram(proto) if _is_unigram(proto) else _bpe(proto))
    _with_spaces(engine, proto)
    _with_symbols(engine, proto, path)
    engine.add_tokens(
        [
            AddedToken(one.piece, normalized=False, special=True)
            for one in proto.pieces
            if one.type == CONTROL
        ]
    )
    return engine


def _is_unigram(proto: Any) -> bool:
    return bool(proto.trainer_spec.model_type == UNIGRAM)


def _symbols(proto: Any) -> list[str]:
    """Return the user-defined symbols that a text can hold: a space in it is written already."""
    return [one.piece for one in proto.pieces if one.type == DEFINED and " " not in one.piece]


def _unigram(proto: Any) -> models.Unigram:
    """Return the model by probabilities, where a user-defined symbol is best wherever it stands."""
    vocab = [
        # As SentencePiece 0.2.3 weighs them: above all pieces, a longer one above shorter.
        (one.piece, (len(one.piece.encode()) - 1) / 10 if one.type == DEFINED else one.score)
        for one in proto.pieces
    ]
    unknown = next(number for number, one in enumerate(proto.pieces) if one.type == UNKNOWN)
    return models.Unigram(vocab, unknown, proto.trainer_spec.byte_fallback)


def _bpe(proto: Any) -> models.BPE:
    return models.BPE(
        vocab={one.piece: number for number, one in enumerate(proto.pieces)},
        merges=_merges(proto),
        unk_token=next(one.piece for one in proto.pieces if one.type == UNKNOWN),
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def _merges(proto: Any) -> list[tuple[str, str]]:
    """Return every way to merge two pieces into one, best scores first, then in piece order."""
    numbers = {one.piece: number for number, one in enumerate(proto.pieces) if one.type == NORMAL}
    found = [
        (-one.score, numbers[one.piece], numbers[left], numbers[right], left, right)
        for one in proto.pieces
        if one.type == NORMAL
        for cut in range(1, len(one.piece))
        if (left := one.piece[:cut]) in numbers and (right := one.piece[cut:]) in numbers
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _with_spaces(engine: Tokenizer, proto: Any) -> None:
    """Treat spaces as the model does before it cuts, and turn them back."""
    spec = proto.normalizer_spec
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    if spec.remove_extra_whitespaces:
        # What a text itself writes as a space stays, but at the end.
        steps.insert(0, normalizers.Replace(Regex(r"\A +| (?= )"), ""))
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))
    if spec.precompiled_charsmap:
        steps.insert(0, normalizers.Precompiled(spec.precompiled_charsmap))
    back: list[Any] = [decoders.Replace(SPACE, " ")]
    if proto.trainer_spec.byte_fallback:
        back += [decoders.ByteFallback(), decoders.Fuse()]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
        back.append(decoders.Strip(" ", 1, 0))
    engine.normalizer = normalizers.Sequence(steps)
    engine.decoder = decoders.Sequence(back)


def _with_symbols(engine: Tokenizer, proto: Any, path: Path) -> None:
    """Find user-defined symbols where the model does: in the text with its spaces written.

    An added token is looked for in the same text, but its own text gets the space before a word as
    well. Where there is such a space, a BPE is cut at the symbols instead and looks them up.
    """
    symbols, spec = _symbols(proto), proto.normalizer_spec
    plain = not (
        spec.add_dummy_prefix or spec.remove_extra_whitespaces or spec.precompiled_charsmap
    )
    cuts = []
    if symbols and plain and not _is_unigram(proto):
        engine.add_tokens([AddedToken(one, normalized=True, special=False) for one in symbols])
    elif symbols and not _is_unigram(proto):
        _check_lookup(engine, proto, path)
        engine.model.ignore_merges = True
        cuts += [re.escape(one) for one in sorted(symbols, key=len, reverse=True)]
    if proto.trainer_spec.byte_fallback and (cuts or _is_unigram(proto)):
        cuts.append(BYTE_PIECE)
    if cuts:
        engine.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(cuts)), "isolated")


def _check_lookup(engine: Tokenizer, proto: Any, path: Path) -> None:
    """Refuse pieces that looking up would give, and merging does not."""
    pieces = [one.piece for one in proto.pieces if one.type == NORMAL]
    bare = Tokenizer(engine.model)
    for piece, cut in zip(pieces, bare.encode_batch_fast(pieces), strict=True):
        if cut.ids != [bare.token_to_id(piece)]:
            raise UserError(
                f"{path} has user-defined symbols, which have to be looked up, and the piece "
                f"{short_repr(piece)}, which a look-up gives and its merges do not make; expected "
                "a tokenizer with a tokenizer.json"
            )
