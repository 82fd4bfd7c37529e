"""`layerlab doctor`: what layerlab runs on; heavy imports only inside."""

from layerlab.cli.arguments.options import AsJson
from layerlab.console.tables import show_result


def doctor(as_json: AsJson = False) -> None:
    """Say what layerlab runs on: versions, devices, threads, kernels."""
    from layerlab.api.diagnose import diagnose

    found = diagnose()
    show_result(found, as_json, str(found), indent=2)
