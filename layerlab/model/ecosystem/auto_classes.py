"""Makes transformers' auto classes know our models, though `import layerlab` imports neither.

Where transformers' own lists are there already, our classes join them at once. Else a finder waits
for them: it finds nothing itself, but hears when one of the modules in `MOMENTS` has run.
"""

import sys
from types import ModuleType
from typing import Any

CONFIGS = "transformers.models.auto.configuration_auto"
MODELS = "transformers.models.auto.modeling_auto"
OUR_CONFIG = "layerlab.model.config"
OUR_MODELS = "layerlab.model.modeling"
# Of transformers, what our models import, and what the list of models is itself imported by.
NEEDED = (
    "transformers.generation",
    "transformers.modeling_layers",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
)
MOMENTS = (CONFIGS, MODELS, OUR_CONFIG, OUR_MODELS, *NEEDED)

_RAN: set[str] = set()


class EnrolmentFinder:
    """A finder that leaves finding to the others, and enrols when a module of `MOMENTS` has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find what another finder gives for a module of `MOMENTS`; None for all others."""
        if name not in MOMENTS:
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        found = (one.find_spec(name, path, target) for one in others)
        spec: Any = next(filter(None, found), None)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def run_and_enrol(module: ModuleType) -> None:
            run(module)
            _RAN.add(module.__name__)  # a loader may serve several modules
            enrol()

        spec.loader.exec_module = run_and_enrol
        return spec


def watch() -> None:
    """Enrol our classes now, or as soon as the auto classes are there."""
    if not any(isinstance(one, EnrolmentFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, EnrolmentFinder())
    enrol()


def enrol() -> None:
    """Register our classes with the auto classes that are there; others still have to come."""
    lists: Any = sys.modules
    if _there(CONFIGS) and not _under_way(OUR_CONFIG):
        from layerlab.model.config import LabConfig

        lists[CONFIGS].AutoConfig.register("layerlab", LabConfig, exist_ok=True)
    if _there(MODELS) and not any(map(_under_way, (OUR_MODELS, *NEEDED))):
        from layerlab.model.modeling import LabConfig, LabForCausalLM, LabModel

        lists[MODELS].AutoModel.register(LabConfig, LabModel, exist_ok=True)
        lists[MODELS].AutoModelForCausalLM.register(LabConfig, LabForCausalLM, exist_ok=True)


def _there(name: str) -> bool:
    return name in sys.modules and not _under_way(name)


def _under_way(name: str) -> bool:
    """Return whether a module is being imported right now: its names may not be there yet."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return name not in _RAN and bool(getattr(spec, "_initializing", False))
