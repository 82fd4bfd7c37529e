"""The code of a model as a flat folder of files, which run where layerlab is not installed.

A checkpoint holds `modeling_layerlab.py`, `configuration_layerlab.py` and the files that these
need, each importing the others as siblings: `trust_remote_code=True` reads just these. Only files
whose parts the model uses come along. Some are written for the place instead of taken over: the
shapes (plain tensors there), the inventory (which knows the parts that are there)
and this file's double, which passes on the files of the user when the model is saved again.
"""

import ast
import hashlib
import importlib
import importlib.util
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from layerlab.blocks.spec import Spec
from layerlab.variants.flat_imports import ERRORS, file_stem, sibling
from layerlab.variants.registry import DeclaredNames, declaring, find_needed, read_before, require
from layerlab.version import VERSION

CONFIG, MODELS = "layerlab.model.config", "layerlab.model.modeling"
AUTO = {
    "AutoConfig": f"{file_stem(CONFIG)}.LabConfig",
    "AutoModel": f"{file_stem(MODELS)}.LabModel",
    "AutoModelForCausalLM": f"{file_stem(MODELS)}.LabForCausalLM",
}
HEADER = "# {place}, as layerlab {version} wrote it beside the weights that it belongs to.\n"
# Stands in what transformers imports first, and checks all files before any other of them runs; in
# its own hash the line of hashes is left out. transformers takes along what relative imports name,
# and tells checkpoints apart by what is in this file: so it differs wherever any other does.
SEAL = """
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .{models} import LabModel

# hashes

def _check():
    for name, digest in DIGESTS.items():
        content = Path(__file__).with_name(name).read_bytes()
        if name == Path(__file__).name:
            lines = content.splitlines(keepends=True)
            content = b"".join(one for one in lines if not one.startswith({mark!r}))
        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            raise ImportError(
                f"{{name}} has SHA-256 {{found[:16]}}..., but was saved with {{digest[:16]}}...; "
                "fetch the folder of the model again"
            )


_check()
"""
DIGESTS, HERE = b"DIGESTS = ", b"# hashes\n"

SHAPES = '''"""Tensors; the shapes that their names stand for are checked where this was written."""

from torch import Tensor

'''
INVENTORY = '''"""The parts of this model, in the files beside this one."""

from .{error} import UserError

{imports}
_PARTS = {{(one.slot, one.name): one for parts in ({names},) for one in parts}}


def part(slot, name):
    """The part class of a slot by its name."""
    if (slot, name) not in _PARTS:
        raise UserError(
            f"this copy has no {{slot}} part called {{name!r}}; load the model where "
            "layerlab is installed"
        )
    return _PARTS[slot, name]


def require(files, folder):
    """Nothing to ask for: the files of users that this model needs lie here."""
'''
DOUBLE = '''"""What is saved when the model is saved again; transformers copies the code."""

AUTO = {auto!r}
ORIGINALS = {originals!r}


def code_files(config):
    """The user's own files, as they were."""
    return dict(ORIGINALS)
'''


def code_files(config: Any) -> dict[str, bytes]:
    """Return the files that a configuration's model needs beside it, by name.

    Raises:
        UserError: a part or a file is not there.
    """
    spec = Spec.from_dict(config.spec)
    config.files = config.files or find_needed(spec)
    unknown = {name: one for name, one in config.files.items() if not read_before(one)}
    require(unknown, config.name_or_path or "")
    homes = declaring(spec, config.files)
    outside = {one.module: one.origin for one in homes if one.origin}
    originals = {one.name: one.source for one in outside.values()}
    texts = {"layerlab.model.ecosystem.export": DOUBLE.format(auto=AUTO, originals=originals)}
    texts |= {"layerlab.shapes": _shapes()}
    inventory = "layerlab.variants.registry"
    wanted = [ERRORS, CONFIG, MODELS, *(one.module for one in homes)]
    while wanted:
        name = wanted.pop()
        if name in texts or name == inventory:
            continue
        origin = outside.get(name)
        source = origin.text if origin else _source(name)
        made = sibling(source, name, home=str(origin.path) if origin else name)
        texts[name] = made.text
        wanted += made.needs
    for origin in outside.values():
        _warn_beside(
            origin.name, *sorted({_top(one) for one in origin.helpers} - {_top(origin.module)})
        )
    files = {name: _file(name, text) for name, text in texts.items()}
    files[inventory] = _file(inventory, _inventory(homes))
    code = {f"{file_stem(name)}.py": content for name, content in files.items()}
    return originals | _seal(code)


@cache
def _warn_beside(file: str, *modules: str) -> None:
    """Warn, once, of what a file imports that is neither installed nor carried."""
    if modules:
        logging.getLogger("layerlab").warning(
            "%s imports %s, which a saved model does not carry: move what it uses into that file, "
            "or take it along",
            file,
            ", ".join(modules),
        )


def _top(module: str) -> str:
    return module.partition(".")[0]


def _file(name: str, text: str) -> bytes:
    return (HEADER.format(place=name, version=VERSION) + text).encode()


def _source(name: str) -> str:
    """Return the source of an installed module."""
    spec = importlib.util.find_spec(name)
    loader: Any = spec.loader if spec else None
    text: str = loader.get_source(name)
    return text


def _shapes() -> str:
    module = importlib.import_module("layerlab.shapes")
    names = [name for name, value in vars(module).items() if hasattr(value, "dims")]
    return SHAPES + "".join(f"{name} = Tensor\n" for name in names)


def _seal(code: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files by name, with the hashes of all written into that of the configuration."""
    first = f"{file_stem(CONFIG)}.py"
    (docstring, *_) = ast.parse(code[first]).body
    lines = code[first].splitlines(keepends=True)
    before, after = lines[: docstring.end_lineno], lines[docstring.end_lineno :]
    start, end = SEAL.format(models=file_stem(MODELS), mark=DIGESTS).encode().split(HERE)
    rest = b"".join([*before, start, end, *after])
    read = {**code, first: rest}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in read.items()}
    marked = DIGESTS + repr(hashes).encode() + b"\n"
    return {**code, first: b"".join([*before, start, marked, end, *after])}


def _inventory(homes: list[DeclaredNames]) -> str:
    stems = [file_stem(one.module) for one in homes]
    imports = [f"from .{stem} import PARTS as P{at}\n" for at, stem in enumerate(stems)]
    return INVENTORY.format(
        error=file_stem(ERRORS),
        imports="".join(imports),
        names=", ".join(f"P{at}" for at in range(len(stems))),
    )
