"""Tokenizers in older files: what SentencePiece writes, and a list of merges."""

import gzip
import json

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.tokenization import convert
from layerlab.tokenization.bpe_file import read_bpe
from layerlab.tokenization.convert import convert_sentencepiece, load_or_convert
from layerlab.tokenization.load import engine
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.verify import verify
from tests.adaptation.bpe import GENERAL, LAW, MARK, bytewise
from tests.support.refused import refuses
from tests.tokenization.spm.protos import change, needed, train


@pytest.fixture
def trained(tmp_path):
    """Train a model of SentencePiece, and give it with its own reader."""

    def build(kind: str = "bpe", **changes: object):
        options = {
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            **changes,
        }
        path = tmp_path / f"{kind}.model"
        return path, train(path, kind, **options)

    return build


@needed
@pytest.mark.parametrize("dummy", [False, True])
def test_a_model_cuts_as_its_own_reader_does(dummy, trained):
    path, reader = trained(add_dummy_prefix=dummy)
    words = load_or_convert(str(path.parent))
    for text in (*GENERAL, *LAW, " the  cat\t ÿ"):
        ids = words.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reader.encode(text)
        assert words.decode(ids) == text
    assert (words.eos_token, words.eos_token_id) == ("</s>", reader.eos_id())


@needed
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("dummy", [False, True])
def test_a_model_that_drops_spaces_drops_them(rule, dummy, trained):
    """As SentencePiece trains one where nothing else is said."""
    path, reader = trained(
        normalization_rule_name=rule, remove_extra_whitespaces=True, add_dummy_prefix=dummy
    )
    words = convert_sentencepiece(path)
    for text in (*GENERAL, *LAW, "  the  cat\t ÿ ", " the\n cat\n", "ＡＢＣ", "", "  "):
        ids = words.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reader.encode(text), text
    assert verify(words, extend(words, LAW, 20), {"law": LAW, "general": GENERAL}).holds


@needed
def test_pieces_that_end_with_a_space_are_refused(trained):
    with pytest.raises(UserError, match="has the space behind a word in the word's last piece"):
        convert_sentencepiece(trained(treat_whitespace_as_suffix=True)[0])


@needed
def test_scores_and_not_places_give_the_order(trained):
    """Pieces that stand at the end may come first: those of Chinese-LLaMA have the score 0."""
    import sentencepiece

    path, _ = trained(add_dummy_prefix=False)
    for piece in ("ec", "eca"):
        change(path, lambda proto, piece=piece: proto.pieces.add(piece=piece, score=0.5))
    reader = sentencepiece.SentencePieceProcessor(model_file=str(path))
    words = convert_sentencepiece(path)
    for text in ("thecat", "the cat thecat", *GENERAL):
        ids = words.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reader.encode(text)
    assert "eca" in reader.encode("eca", out_type=str)


@needed
def test_a_model_is_extended_and_a_unigram_refused(trained):
    base = convert_sentencepiece(trained()[0])
    new = extend(base, LAW, 60)
    assert verify(base, new, {"law": LAW, "general": GENERAL}).holds
    with pytest.raises(UserError, match="of a Unigram tokenizer: its pieces compete"):
        extend(convert_sentencepiece(trained("unigram")[0]), LAW, 4)


def test_a_list_of_merges_is_read(tmp_path):
    bytewise().backend_tokenizer.model.save(str(tmp_path))
    words = load_or_convert(str(tmp_path))
    assert words.eos_token == "<|endoftext|>"
    for text in (*GENERAL, *LAW):
        assert engine(words).encode(text).ids == engine(bytewise()).encode(text).ids
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    refuses("holds no tokenizer that can be loaded", load_or_convert, str(tmp_path))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na q\n")
    said = r"cannot read the vocab.json and merges.txt of .* `q` out of vocabulary; copy them anew"
    refuses(said, load_or_convert, str(tmp_path))


def test_settings_beside_a_list_of_merges_are_not_passed_over(tmp_path):
    """As a folder of Qwen's holds them: it cuts words otherwise, and has tokens of its own."""
    bytewise().backend_tokenizer.model.save(str(tmp_path))
    end = {"content": MARK, "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": MARK,
        "added_tokens_decoder": {"330": {**end, "single_word": False}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    words = load_or_convert(str(tmp_path))
    assert (words.eos_token, words(f"12{MARK}")["input_ids"][-1]) == (MARK, 330)


def test_other_tokenizers_are_read_as_training_does(tmp_path):
    bytewise().save_pretrained(tmp_path)
    assert load_or_convert(str(tmp_path)).get_vocab() == bytewise().get_vocab()
    refuses("there is no tokenizer 'nobody/nothing'", load_or_convert, "nobody/nothing")
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_endless()))
    bare.save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match="has no token for the end or the beginning of a text"):
        load_or_convert(str(tmp_path / "bare"))
    # The functions themselves need neither an end nor padding.
    assert len(extend(bare, LAW, 7)) == len(bare) + 7


def _endless() -> str:
    content = json.loads(bytewise().backend_tokenizer.to_str())
    return json.dumps({**content, "added_tokens": []})


def test_what_is_missing_or_broken_is_named(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\xff\xff no model")
    if all(map(convert.present, convert.NEEDED)):
        refuses("is no model of SentencePiece; expected what its", load_or_convert, str(path))
        with pytest.raises(UserError, match=r"cannot read .*: No such file .*; name another file"):
            convert_sentencepiece(tmp_path / "nothing.model")
    monkeypatch.setattr(convert, "NEEDED", ("sentencepiece_that_is_not", "google.not_there"))
    said = r"and sentencepiece_that_is_not and .* cannot be imported; in a copy .*install .*\[spm\]"
    refuses(said, load_or_convert, str(tmp_path))


@pytest.mark.full
@needed
def test_a_real_model_of_100_000_pieces_cuts_as_its_own_reader_does(data):
    import sentencepiece

    folder = data / "tokenizers" / "internlm"
    with gzip.open(data / "brown" / "brown.txt.gz", "rt", encoding="utf-8") as file:
        texts = [next(file) for _ in range(200)]
    texts += (data / "zh-general" / "cn_wiki_sample.txt").read_text("utf-8").split("\n")[:60]
    words = load_or_convert(str(folder))
    reader = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    cut = engine(words).encode_batch_fast(texts, add_special_tokens=False)
    assert [one.ids for one in cut] == [reader.encode(text) for text in texts]
    assert read_bpe(words).vocab["<s>"] == 1


@pytest.mark.full
def test_the_real_list_of_merges_of_gpt2_is_read(data):
    words = load_or_convert(str(data / "tokenizers" / "gpt2"))
    assert len(words) == 50_257 and words("hello world")["input_ids"] == [31373, 995]
