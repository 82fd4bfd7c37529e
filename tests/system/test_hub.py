"""The Hub: without a network, one line after some seconds, and no more; kept copies are found."""

import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from layerlab import UserError
from layerlab.data.sources import open_source
from layerlab.loading.folders import fetch
from layerlab.recipes.training_sections import Source
from layerlab.system.hub import explain_no_answer, hub
from layerlab.tokenization.load import load_tokenizer
from tests.support.refused import refuses

NOWHERE = "http://127.0.0.1:9"  # the port of "discard", at which nobody listens


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it who has set nothing, on a machine without a network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as found:  # knows no HEAD: error 501
        found.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_any_answer_is_one(online, server):
    assert explain_no_answer(server) == ""
    assert explain_no_answer(NOWHERE) == f"there is no connection to {NOWHERE}"


def test_who_asks_for_no_network_is_reminded(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in explain_no_answer(NOWHERE)


def test_libraries_look_at_kept_copies_alone_and_only_meanwhile(online):
    with hub() as why:
        assert why and constants.is_offline_mode()
        assert not logging.getLogger("huggingface_hub").isEnabledFor(logging.WARNING)
    assert not constants.is_offline_mode()
    assert logging.getLogger("huggingface_hub").level != logging.CRITICAL


def test_without_a_network_nothing_is_tried_again(online, caplog, capfd):
    start = time.perf_counter()
    with pytest.raises(UserError, match=r"from the Hub: there is no connection to .*; check"):
        list(open_source(Source(text="hf:nobody/nothing")).pieces())
    with pytest.raises(UserError, match="no tokenizer 'nobody/nothing': there is no connection to"):
        load_tokenizer("nobody/nothing")
    assert time.perf_counter() - start < 20  # five attempts at each take 46
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_a_model_is_looked_for_in_the_cache_alone_where_no_address_answers(online, monkeypatch):
    """The client would try again for half a minute."""
    asked: dict[str, object] = {}

    def download(name: str, **options: object) -> str:
        asked.update(options)
        raise OSError("nothing is kept here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"nor could it be fetched from the Hub: there is no conn"):
        fetch("nobody/nothing", with_weights=False)
    assert asked["local_files_only"] is True


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "GatedRepo",
            r"from the Hub: it is gated: ask for access on its page there",
        ),
        ("RepoNotFound", r"from the Hub: there is none of that name, or it is private and wants "),
    ],
)
def test_why_the_hub_gives_nothing_is_said(code, said, online, monkeypatch):
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{refusing.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        refuses(said, fetch, "owner/model", with_weights=False)
        refusing.shutdown()
