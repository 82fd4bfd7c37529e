"""Small tokenizers of every kind that a vocabulary can be adapted of, and texts for them."""

import json
from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from layerlab.tokenization.load import train_tokenizer

GENERAL = [
    "the cat and the hat sat on the mat, and the cat saw the rat",
    "een kat en een hoed; zwei Katzen, ein Hut und ein Käse",
    "天气很好，我们去公园散步。今天天气不好，我们在家看书。",
    "x = 1\n    y = x + 22\n    return the_cat(y)\n",
] * 4
LAW = [
    "被告人张某某××犯盗窃罪，判处有期徒刑三年。被告人李某××犯诈骗罪，判处有期徒刑五年。",
    "the defendant pleads that the defendant, the plaintiff and the court agree",
    "原告王某诉被告李某借款合同纠纷一案，本院判处被告人有期徒刑。the court, the court",
] * 4
MARK = "<|im_end|>"


def bytewise() -> PreTrainedTokenizerFast:
    """Over bytes, with a special token and a plain one that were added behind the vocabulary."""
    words = train_tokenizer(GENERAL, 330)
    words.backend_tokenizer.add_special_tokens([MARK])
    words.backend_tokenizer.add_tokens(["zebra"])
    return words


def looked_up() -> PreTrainedTokenizerFast:
    """As that of Llama 3: whole words are looked up first, and one of them no merges make."""
    words = train_tokenizer(GENERAL, 330)
    content = json.loads(words.backend_tokenizer.to_str())
    content["model"]["ignore_merges"] = True
    content["model"]["vocab"]["Ġsaw"] = len(content["model"]["vocab"])
    return fast(content, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def spoken() -> decoders.Decoder:
    """The decoder of SentencePiece: one space in front of a text is none."""
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )


def fallback(*, split: bool = True) -> PreTrainedTokenizerFast:
    """As that of Llama 2: spaces are characters, and an unknown character becomes its bytes.

    Args:
        split: whether the file holds a merge as a list of two; as in older files else.
    """
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(GENERAL, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    vocab = {token: number for number, token in enumerate([*first, *learned])}
    merges = model["merges"] if split else [" ".join(pair) for pair in model["merges"]]
    bare = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], unk_token="a"))
    bare.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    bare.decoder = spoken()
    content = json.loads(bare.to_str())
    content["model"] |= {
        "vocab": vocab,
        "merges": merges,
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
    }
    content["added_tokens"] = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(first[:3])
    ]
    return fast(content, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def fast(content: dict, **special: str) -> PreTrainedTokenizerFast:
    engine = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, clean_up_tokenization_spaces=False, **special
    )


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytewise": bytewise,
    "looked up": looked_up,
    "fallback": fallback,
    "fallback, older file": lambda: fallback(split=False),
}
