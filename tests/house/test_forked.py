"""Processes that tests fork: from one server for all workers, and with the garbage of their own."""

import os

from tests.support.forked import READY, Server, python


def test_who_joins_a_server_forks_from_it_and_starts_none():
    other = Server()
    address, pid, key = READY.share()
    assert address is not None and pid is not None
    other.join(address, pid, key)
    code = "import os, sys; print(os.getppid(), 'layerlab.cli.app' in sys.modules)"
    for server in (READY, other):
        assert python("-c", code, server=server).stdout.split() == [str(pid), "True"]
    assert other.share() == READY.share() and pid != os.getpid()


def test_a_process_looks_for_garbage_though_its_server_did_not():
    code = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    assert python("-c", code).stdout.split() == ["True", "True"]
