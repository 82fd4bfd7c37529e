"""The studies of the package: files of `layerlab/studies` that end in `STUDY` or `STUDIES`."""

import importlib
import pkgutil
from typing import Any

from layerlab.errors import UserError

PACKAGE = "layerlab.studies"
# Folders that hold what studies need, and none of them.
SHARED = {"engine", "support"}


def studies() -> dict[str, Any]:
    """Return every study of the package by its name, in the order of the names."""
    package = importlib.import_module(PACKAGE)
    found: dict[str, Any] = {}
    for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not SHARED.isdisjoint(entry.name.split(".")):
            continue
        module = importlib.import_module(entry.name)
        own = (module.STUDY,) if hasattr(module, "STUDY") else getattr(module, "STUDIES", ())
        for study in own:
            if study.name in found:
                raise UserError(
                    f"two studies are called {study.name!r}: {found[study.name].run.__module__} "
                    f"and {module.__name__}; give one of them another name"
                )
            found[study.name] = study
    return dict(sorted(found.items()))
