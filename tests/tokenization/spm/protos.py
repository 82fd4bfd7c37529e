"""Models of SentencePiece for tests: trained on a few texts, or written piece by piece."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab.tokenization.spm.model_file import NEEDED, present
from tests.adaptation.bpe import GENERAL

needed = pytest.mark.skipif(
    not all(map(present, NEEDED)),
    reason="sentencepiece and protobuf are not installed (the extra spm)",
)


def train(path: Path, kind: str, **changes: Any) -> Any:
    """Train a model on the general texts, write it, and return SentencePiece's reader of it."""
    import sentencepiece

    options = {"vocab_size": 380, "byte_fallback": True, "hard_vocab_limit": False, **changes}
    with io.BytesIO() as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(GENERAL * 5),
            model_writer=file,
            model_type=kind,
            minloglevel=2,
            **options,
        )
        path.write_bytes(file.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def change(path: Path, mend: Callable[[Any], object]) -> None:
    """Change a model where it lies."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    mend(proto)
    path.write_bytes(proto.SerializeToString())


def write(path: Path, pieces: list[str]) -> None:
    """Write a BPE of the letters and of further pieces."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = 2
    proto.normalizer_spec.name = "identity"
    for piece, kind in (("<unk>", 2), ("<s>", 3), ("</s>", 3)):
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for number, piece in enumerate(["▁", *"abcdefghijklmnopqrstuvwxyz", *pieces]):
        proto.pieces.add(piece=piece, score=-float(number), type=1)
    path.write_bytes(proto.SerializeToString())
