"""What is remarked on how models have read a text."""

import json
import shutil

import pytest

import layerlab
from layerlab.loading.folders import find_folder
from layerlab.report.results.terminal_summary import lines
from layerlab.report.results.text_remarks import describe_text


@pytest.mark.parametrize(
    ("read", "fewest", "samples", "told"),
    [
        (["a", "a"], 4, 4, []),
        (["a", "b"], 4, 4, ["did not read the same tokens"]),
        (["a"], 2, 4, ["it has 2 of 4 samples"]),
        (["a", "b"], 1, 4, ["did not read the same tokens", "it has 1 of 4 samples"]),
        (["a"], 1, None, []),
        (["a"], 1, "auto", []),
        ([], 0, 4, []),  # no model has a loss on it
    ],
)
def test_what_differs_or_lacks_is_said(read, fewest, samples, told):
    found = describe_text(read, fewest=fewest, samples=samples)
    assert len(found) == len(told) and all(map(str.__contains__, found, told))


@pytest.mark.full
def test_two_tokenizers_are_remarked_on_beside_the_losses(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(find_folder("llama", with_weights=True), other)
    rules = json.loads((other / "tokenizer.json").read_text())
    rules["model"]["merges"] = rules["model"]["merges"][:99]
    (other / "tokenizer.json").write_text(json.dumps(rules))
    text = "The court held that the contract was void."
    same, apart = (
        layerlab.inspect(models, texts=text, measures="stream", progress=False)
        for models in (["llama", "pre-norm"], ["llama", str(other)])
    )
    assert same.to_dict()["text"]["remarks"] == []
    (told,) = apart.to_dict()["text"]["remarks"]
    assert "losses per token are not comparable" in told
    assert told in lines(apart.to_dict(), ())
    apart.save(tmp_path / "out")
    assert told in (tmp_path / "out" / "report.html").read_text()
