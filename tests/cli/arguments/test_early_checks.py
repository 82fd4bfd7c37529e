"""Errors that need no torch come before torch is imported."""

import json
from pathlib import Path

import pytest

from tests.support.forked import empty_python

# What is typed, and what is said of it.
MISTAKES = [
    ("study nosuch", "no study is called 'nosuch'"),
    ("inspect --measures nosuch", "no measure is called 'nosuch'"),
    ("inspect --measures logit_lens", "no measure is called 'logit_lens'; did you mean 'lens'?"),
    ("inspect --measures lens,lens(tuned=True)", "name it once (tuned=True shows both lenses): t"),
    ("inspect --measures dimension(eps=1)", "measure 'dimension' has no option 'eps'"),
    ("inspect --measures dimension(epsilon=2)", "got 2; expected a number above 0 and at most 1"),
    ("inspect --measures rounding(formats=fp99)", "no number format is called 'fp99'"),
    ("inspect --measures gradients(tokens=1)", "got 1; expected a whole number at least 2"),
    ("inspect --measures saliency(text='')", "the text of a saliency is empty"),
    ("inspect --weights --measures stream", "measure 'stream' reads a text, and --weights"),
    ("inspect --backward", "gradient errors need a number format to be measured in"),
    ("inspect --saliency=", "the text of a saliency is empty"),
    ("inspect --saliency I --target x --foil x", "target and foil are both 'x'"),
    ("inspect --target x", "--target asks about the next token of a text"),
    ("inspect --measures saliency(foil=x) --target x", "target and foil are both 'x'"),
    ("inspect --foil x", "--foil asks about the next token of a text"),
    ("inspect --load nofile.py", "no Python file at nofile.py"),
    ("inspect --load broken.py", "cannot read broken.py as Python: line 1: invalid syntax"),
    ("inspect --samples 0", "samples is 0; expected a whole number, at least 1"),
    ("inspect --device gpu", "device 'gpu' is not here; expected cpu, cuda, cuda:N, mps or auto"),
    ("inspect ./nothing", "nothing lies at ./nothing; expected the folder that holds config"),
    ("inspect pre-norm,llama", "write several with blanks between them: pre-norm llama"),
    ("inspect prenorm", "did you mean 'pre-norm'? check the spelling and the network"),
    ("inspekt", "No such command 'inspekt'. Did you mean 'inspect'? type layerlab --help"),
    ("inspect --dtype fp99", "dtype is 'fp99'; expected float32, float64, bfloat16, float16"),
    ("inspect --text .", "--text .: is a directory; expected a text file, or -"),
    ("inspect --text /dev/null", "'/dev/null' is a device; expected a file"),
    ("adapt clean ~no.body/x.txt --out c", "there is no text '~no.body/x.txt'"),
    ("inspect --context 1", "expected a whole number, at least 2: type --context 512"),
    ("inspect --formats fp99", "no number format is called 'fp99'"),
    ("inspect --weights --context 8", "--weights reads no text and runs no model, so that --cont"),
    ("variants nosuch", "no variant is called 'nosuch'"),
    ("variants llama-7", "did you mean"),
    ("variants --preset nosuch", "no preset is called 'nosuch'"),
    ("variants --load nofile.py", "no Python file at nofile.py"),
    ("variants --match ffn", "--match resizes a variant that is named until it equals another"),
    ("variants llama --option nosuch", "cannot read the option 'nosuch'"),
    ("variants llama --option norms=1", "no option or size is called 'norms'; did you mean 'norm"),
    ("variants llama --width 0", "width is 0; expected a whole number from 1: type --width 64"),
    ("variants llama --layers 9999", "layers is 9999, more than any model has"),
    ("variants llama --heads 3", "3 heads do not divide a width of 256; type --heads 2, or give"),
    ("retrofit llama --variant nosuch --out new", "no variant is called 'nosuch'"),
    ("retrofit llama --option nosuch=1 --out new", "no option or size is called 'nosuch'"),
    ("retrofit nosuch --out new", "'nosuch' is neither a folder, nor a built-in model"),
    ("train smoke --set model.variant=nosuch", "no variant is called 'nosuch'"),
    ("train smoke --set model.preset=nosuch", "no preset is called 'nosuch'"),
    ("train smoke --set run.device=gpu", "which is no device; expected cpu, cuda, cuda:N,"),
    ("train smoke --set model.heads=3", "3 heads do not divide a width of 64; type heads=2"),
    ("train smoke --set model.options={norms=1}", "no option or size is called 'norms'; did you"),
    ("train smoke --set emulate.format=fp99", "no number format is called 'fp99'"),
    ("train smoke --set data.tokenizer=nosuch", "there is no tokenizer 'nosuch'"),
    ('train smoke --set data.sources=[{text="no.txt"}]', "there is no text 'no.txt'"),
    ("compare smoke", "layerlab compare, or name what to compare: --arms llama,gpt2"),
    (
        "compare smoke --ladder 0",
        "--ladder is 0; expected a number of sizes, two or more: type --l",
    ),
    (
        "compare smoke --arms llama",
        "compare.arms has 'llama' alone, which is held against none; ex",
    ),
    (
        "compare llama,gpt2",
        "names variants, no recipe; type layerlab compare smoke --arms llama,gpt2",
    ),
    ("train gpt2", "--arms gpt2,llama, or layerlab train smoke --set model.variant=gpt2"),
    ("train smoke --set max_steps=4", "no setting 'max_steps'; did you mean 'train.max_steps'?"),
    ("train smoke --set train.max_steps=-4", "to 1e+15: write train.max_steps = 400"),
    ("compare smoke --arms nosuch,llama", "no variant is called 'nosuch'"),
    ("compare smoke --arms llama,llama", "two arms are called 'llama'"),
    ("compare smoke --arms llama,gpt2 --set compare.baseline=no", "the baseline 'no' is no arm"),
    ("compare smoke --arms llama,gpt2 --set compare.seeds=[1,1]", "compare.seeds [1, 1] repeat"),
    ("compare smoke --arms llama,gpt2 --load nofile.py", "no Python file at nofile.py"),
    ("evaluate llama --tasks nofile.yaml", "cannot read nofile.yaml"),
    ("evaluate llama --tasks ,", "no task is named in ','"),
    ("evaluate llama --tasks arc_eazy", "no task, group or tag 'arc_eazy'; did you mean arc_easy"),
    ("evaluate llama --suite piqa --data .", "nothing can be asked: PIQA is not here"),
    ("evaluate llama --data nodir", "there is no folder 'nodir'; give --data"),
    ("evaluate llama --against nofile.json", "cannot read nofile.json"),
    ("evaluate llama --policy nofile.toml", "cannot read the policy 'nofile.toml'"),
    ("evaluate llama --policy .", "cannot read the policy '.': Is a directory"),
    ("evaluate llama --device gpu", "device 'gpu' is not here; expected cpu, cuda, cuda:N, mps"),
    ("evaluate llama --dtype fp99", "dtype is 'fp99'; expected float32, float64, bfloat16,"),
    ("evaluate llama --format fp99", "no number format is called 'fp99'"),
    ("evaluate llama --limit 0", "limit is 0; expected"),
    ("gap nosuch", "'nosuch' is neither a folder, nor a built-in model"),
    ("gap --a torch-eagr", "no profile is called 'torch-eagr'"),
    ("gap --b nofile.toml", "no profile is called 'nofile.toml', and as a file it cannot be read"),
    ("gap --text nofile.txt", "--text nofile.txt: no such file or directory"),
    ("gap --logprobs nofile.jsonl", "--logprobs nofile.jsonl: no such file"),
    ("gap --logprobs .", "--logprobs . is a folder; name the file in it"),
    ("gap --logprobs nofile.jsonl --samples 3", "leave --samples out"),
    ("gap --context 1", "context is 1; expected a whole number, at least 2"),
    ("precision nosuch", "'nosuch' is neither a folder, nor a built-in model"),
    ("precision --text nofile.txt", "--text nofile.txt: no such file or directory"),
    ("precision --context 1", "context is 1; expected a whole number, at least 2"),
    ("precision --device gpu", "device 'gpu' is not here; expected cpu, cuda, cuda:N, mps or auto"),
    ("precision --format fp99", "no number format is called 'fp99'"),
    ("precision --format fp32", "a model in fp32 is in float32 already: there is nothing to keep"),
    ("precision --format tf32", "a model in tf32 is in float32 already: there is nothing to keep"),
    ("precision --budget 2", "budget is 2.0; expected a share of the squared error"),
    ("bench latency nosuch", "'nosuch' is neither a folder, nor a built-in model"),
    ("bench latency nosuch:width=64", "no variant is called 'nosuch'"),
    ("bench latency llama:nosuch=1", "no option or size is called 'nosuch'"),
    ("bench latency llama:heads=3", "3 heads do not divide a width of 256; type heads=2"),
    ("bench latency --accounting nosuch", "no accounting is called 'nosuch'"),
    ("bench latency --accounting fewer-layers --shape 9b", "no shape is called '9b'"),
    ("bench latency --accounting fewer-layers --width 3", "width is 3; expected a multiple of 128"),
    ("bench latency llama --shape 7b", "--shape is a size of an accounting"),
    ("bench latency llama --dtype fp99", "dtype is 'fp99'; expected float32, float64, bfloat16"),
    ("bench latency llama --new 1", "new is 1; expected a whole number from 2"),
    (
        "adapt embed nosuch --tokenizer llama --out new",
        "'nosuch' is neither a folder, nor a built-in model",
    ),
    ("adapt embed llama --tokenizer nosuch --out new", "there is no tokenizer 'nosuch'"),
    ("adapt embed llama --tokenizer llama --out new --text no.txt", "there is no text 'no.txt'"),
    ("adapt vocabulary --tokenizer llama --corpus no.txt --size +9 --out new", "there is no text"),
    ("adapt vocabulary --tokenizer no --corpus python-docs --size +9 --out new", "no tokenizer 'n"),
    ("adapt vocabulary --tokenizer llama --corpus python-docs --size x --out new", "the size 'x'"),
    ("adapt contamination broken.py --benchmark nodir", "broken.py is no text that can be read"),
    ("adapt clean no.txt --out new", "there is no text 'no.txt'"),
    ("adapt yunshan-mini --load nofile.py", "no Python file at nofile.py"),
    ('adapt yunshan-mini --set data.domain=[{text="no.txt"}]', "there is no text 'no.txt'"),
    ("study rounding-depth --option nosuch=1", "study rounding-depth has no option 'nosuch'"),
    ("study rounding-depth --option norm=no", "option norm is 'no'; expected 'layer' or 'rms'"),
    ("study rounding-depth --draws 0", "at most 10000000: type for example --draws 100"),
    ("study rounding-depth --threads 0", "threads is 0; expected a whole number at least 1"),
    ("study rounding-depth --out broken.py", "cannot write a study to broken.py: it is a file"),
    ("runs nodir", "no folder at 'nodir'"),
    (
        "compare llama gpt2",
        "'gpt2' is one word too many; expected RECIPE and options alone: type layerlab compare "
        "smoke --arms llama,gpt2\n",
    ),
    ("compare smoke --arms llama gpt2", ": type layerlab compare smoke --arms llama,gpt2\n"),
    (
        "compare smoke a.toml",
        "'a.toml' is one word too many; expected RECIPE and options alone; type layerlab compare -",
    ),
    ("doctor gpt2", "'gpt2' is one word too many; expected options alone; type layerlab doctor -"),
    ("gap --a", "Option '--a' requires an argument; type layerlab gap --help"),
    ("inspect --context=nan", "--context is 'nan'; expected a whole number; type layerlab inspect"),
    ("precision --budget x", "--budget is 'x'; expected a number; type layerlab precision --help"),
    (
        "retrofit llama --out new --seed -1",
        "--seed is '-1'; expected a number greater than or equal to 0; type layerlab retrofit -",
    ),
]
BROKEN = "def ("
PROGRAM = """
import contextlib, io, json, sys
from layerlab.cli.app import app
from layerlab.console.ending import run_app

found = []
for words in json.loads(sys.argv[1]):
    error = io.StringIO()
    sys.argv = ["layerlab", *words]
    with contextlib.redirect_stderr(error):
        code = run_app(app)
    heavy = sorted({"torch", "transformers"} & set(sys.modules))
    found.append([code, error.getvalue(), heavy])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, list[str]]]:
    """What each was answered with, by an interpreter that had imported nothing before."""
    words = json.dumps([typed.split() for typed, _ in MISTAKES])
    folder: Path = tmp_path_factory.mktemp("empty")
    (folder / "broken.py").write_text(BROKEN, "utf-8")
    done = empty_python("-c", PROGRAM, words, check=True, cwd=folder)
    assert list(folder.iterdir()) == [folder / "broken.py"]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda number: MISTAKES[number][0])
def test_a_mistake_is_told_before_torch_is_imported(told, number):
    code, error, heavy = told[number]
    assert code == 2 and error.count("\n") == 1
    assert MISTAKES[number][1] in error
    assert heavy == []
