"""`layerlab variants` as a user types it: a process, its exit code, its words."""

import json
import os

import pytest

from tests.support.forked import python

SILENT = '''"""A variant whose part does not say what it costs."""

from layerlab.blocks.ffn import Gated
from layerlab.blocks.spec import Choice, Spec, Variant


class Silent(Gated):
    name = "silent"

    @classmethod
    def cost(cls, width, site, **options):
        return None


PARTS = (Silent,)
VARIANTS = (
    Variant(
        name="silent",
        spec=Spec().with_block(ffn=Choice("silent")),
        equation="x <- x + SwiGLU(RMS(x))",
        source="Own",
        about="[bold]hostile[/nonsense]\\x1b[31m words",
    ),
)
'''


def layerlab(*words, cwd, columns=80):
    env = {**os.environ, "COLUMNS": str(columns)}
    return python("-m", "layerlab", *map(str, words), cwd=cwd, env=env)


def test_without_a_name_there_is_a_sentence_on_everything(tmp_path):
    from layerlab.variants.registry import variants

    done = layerlab("variants", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert set(variants()) <= {line.split()[0] for line in lines if line.split()}
    flowing = " ".join(done.stdout.split())
    assert "history-2 Method 1 with the mean of the earlier attention outputs." in flowing
    assert "Method 0 of the same source" not in flowing and "par%" not in flowing
    assert flowing.endswith("Their numbers: --costs")


def test_each_variant_has_a_sentence_of_its_own():
    from layerlab.model.listing.listing import first_sentence
    from layerlab.variants.registry import variants

    found = [first_sentence(one.about) for one in variants().values()]
    assert len(set(found)) == len(found) and all(found)


def test_costs_of_everything_are_a_table(tmp_path):
    from layerlab.variants.registry import variants

    done = layerlab("variants", "--costs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    firsts = [line.split()[0] for line in done.stdout.splitlines() if line.split()]
    assert set(variants()) <= set(firsts)
    assert firsts.index("reference:") < firsts.index("pangu:")


def test_a_name_gives_a_card_and_a_preset_gives_its_shape(tmp_path):
    done = layerlab("variants", "pangu-pi-1b", "--option", "shortcut.r=16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    flowing = " ".join(done.stdout.split())
    assert (
        "shortcut: augmented(r=16)" in flowing and "pangu-pi-1b: width 2048, 12 layers" in flowing
    )
    assert "not published Feed-forward width, context" in flowing
    assert "(unsaid by the source)" in flowing and "residual: plain" in flowing


def test_json_has_the_numbers_whole(tmp_path):
    words = ("--width", 48, "--layers", 2, "--vocab", 61, "--context", 24, "--kv-heads", 2)
    done = layerlab("variants", "llama", *words, "--inner", 100, "--json", cwd=tmp_path)
    entry = json.loads(done.stdout)["variants"]["llama"]
    width, inner, layers, vocab = 48, 100, 2, 61
    attention = 2 * width * width + 2 * width * width // 2
    body = layers * (attention + 3 * width * inner + 2 * width) + width
    assert entry["account"]["parameters"] == body + 2 * vocab * width
    assert entry["sizes"]["kv_heads"] == 2 and entry["extra_percent"]["parameters"] == 0


def test_depth_is_matched_as_the_source_did_it(tmp_path):
    words = ("--match", "depth", "--against", "llama-7b", "--json")
    done = layerlab("variants", "pangu-pi", "--preset", "pangu-pi-7b", *words, cwd=tmp_path)
    (found,) = json.loads(done.stdout)["matches"]
    assert found["sizes"]["layers"] == 29 and abs(found["percent"]) < 0.2
    assert found["found"] - found["wanted"] == found["mismatch"]


def test_a_new_file_is_written_and_can_be_loaded(tmp_path):
    done = layerlab("variants", "--new", "my idea.py", cwd=tmp_path)
    assert done.returncode == 0 and "layerlab variants my-idea --load 'my idea.py'" in done.stdout
    done = layerlab("variants", "my-idea", "--load", "my idea.py", "--match", "ffn", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "myidea.py" in "".join(done.stdout.split())  # a long path is folded
    assert "matched by ffn to llama: inner=" in done.stdout


@pytest.mark.full
def test_what_is_imported_is_looked_through_for_garbage_less_often(tmp_path):
    looking = "\nimport gc\nprint(gc.isenabled(), gc.get_threshold()[0] >= 10_000)\n"
    (tmp_path / "own.py").write_text(SILENT + looking)
    done = layerlab("variants", "--load", "own.py", cwd=tmp_path)
    assert done.stdout.startswith("True True\n"), done.stdout + done.stderr


@pytest.mark.full
def test_a_part_without_a_formula_is_counted_and_its_words_are_harmless(tmp_path):
    (tmp_path / "silent.py").write_text(SILENT)
    done = layerlab("variants", "silent", "--load", "silent.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "counted on a model without memory" in done.stdout
    assert "[bold]hostile[/nonsense][31m words" in done.stdout and "\x1b" not in done.stdout
    both = layerlab("variants", "silent", "llama", "--load", "silent.py", cwd=tmp_path, columns=140)
    rows = {line.split()[0]: line.split() for line in both.stdout.splitlines() if line.split()}
    # Name, then embedding, head, blocks, scalars, forward and backward.
    assert rows["silent*"][1:7] == rows["llama"][1:7]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lama",), "no variant is called 'lama'; did you mean 'llama'? type: layerlab variants"),
        (("llama", "--heads", "5"), "5 heads do not divide a width of 256; type --heads 4"),
        (
            ("llama", "--option", "bias"),
            "cannot read the option 'bias'; expected a name and a value",
        ),
        (
            ("llama", "--option", "bias=true"),
            "bias is an option of attention and ffn; type attention",
        ),
        (("--preset", "lama-7b"), "no preset is called 'lama-7b'; did you mean 'llama-7b'?"),
        (("--match", "depth"), "--match resizes a variant that is named until it equals another"),
        (
            ("llama", "--against", "gpt2"),
            "type: layerlab variants pangu-pi --match depth --against",
        ),
        (("--widht", "3"), "type layerlab variants --help"),
        (("--load", "missing.py"), "no Python file at missing.py"),
        (("--new", "gpt2.py"), "a variant called 'gpt2' is there already; give the file another"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(tmp_path, words, message):
    done = layerlab("variants", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("adapt",), ("bench",)])
def test_help_says_of_each_command_a_whole_sentence(words, tmp_path):
    _, commands = layerlab(*words, "--help", cwd=tmp_path).stdout.split("Commands:\n")
    assert commands and all(
        line.endswith(".") and "..." not in line for line in commands.split("\n") if line
    )


def test_an_option_of_a_part_is_told_as_it_is_typed(tmp_path):
    done = layerlab("variants", "pangu-pi", "--option", "n=0", cwd=tmp_path)
    assert done.stderr.endswith("at most 16: type for example --option n=2\n")
