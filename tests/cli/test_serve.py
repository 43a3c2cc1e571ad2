"""`prixlm serve`: what it prints, how it ends, and what it refuses in one line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prixlm import KB
from prixlm.cli.serve import _listen
from tests.helpers import run_prixlm

TOKEN = "a-secret-of-many-letters"


@contextmanager
def serving(*args: object) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Start a server on a free port; yield it, its address and the lines that it printed."""
    code = "from prixlm.cli.app import main; main()"
    command = [sys.executable, "-c", code, "serve", *map(str, args), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        end = threading.Timer(60, server.kill)
        end.start()
        try:
            lines = []
            for line in server.stdout:
                lines.append(line.rstrip("\n"))
                if "Ctrl-C" in line:
                    break
            found = re.search(r"Open (http://[^/]+)/", "\n".join(lines))
            assert found, (lines, server.stderr.read() if server.stderr else "")
            yield server, found[1], lines
        finally:
            end.cancel()
            server.kill()


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_server_tells_what_it_offers_and_ends_cleanly(shared_toy: KB, kind: int) -> None:
    with serving("--kb", shared_toy.folder) as (server, address, lines):
        assert lines[0] == "17 entities in 5 languages, 13 facts, 0 proposals."
        assert f"OpenRefine: {address}/reconcile" in lines
        assert any(line.startswith("No proposals") for line in lines)
        assert any(line.startswith("No model and no fitted evidence") for line in lines)
        assert json.loads(get(f"{address}/api/status"))["languages"] == shared_toy.languages
        server.send_signal(kind)
        _, errors = server.communicate(timeout=20)
        assert (server.returncode, errors) == (0, "")


def test_a_token_is_part_of_the_printed_address(shared_toy: KB) -> None:
    with serving("--kb", shared_toy.folder, "--token", TOKEN) as (_, address, lines):
        assert f"Open {address}/?token={TOKEN}" in lines
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(f"{address}/api/status")
        assert get(f"{address}/api/status", Authorization=f"Bearer {TOKEN}")


def test_what_anyone_can_send_does_not_fill_the_log(shared_toy: KB) -> None:
    with serving("--kb", shared_toy.folder) as (server, address, _):
        port = int(address.rpartition(":")[2])
        upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        for sent in (b"\x16\x03\x01\r\n\r\n", upgrade):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(sent)
                assert b"400" in connection.recv(1000)
        server.send_signal(signal.SIGTERM)
        assert server.communicate(timeout=20)[1] == ""


def test_a_connection_that_sends_no_request_is_closed(shared_toy: KB) -> None:
    with serving("--kb", shared_toy.folder) as (_, address, _):
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            assert connection.recv(1) == b""


def test_an_answer_in_two_parts_does_not_wait_for_the_client() -> None:
    """Head and body are two writes: without TCP_NODELAY the second waits 40 ms for a receipt."""
    with (
        _listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_one_line(shared_toy: KB) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run_prixlm("serve", "--kb", shared_toy.folder, "--port", port)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in ran.stderr
    assert "--port 0" in ran.stderr


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "name a work folder of `prixlm enrich`, or pass --kb KB"),
        (["nowhere"], "is not a work folder"),
        (["--kb", "nowhere"], "is not a KB folder"),
        (["--kb", "nowhere", "--host", "0.0.0.0"], "needs --token"),
        (["--kb", "nowhere", "--host", "0.0.0.0", "--token", "short"], "16 printable"),
        (["--kb", "nowhere", "--host", "no.such.host.invalid", "--token", TOKEN], "cannot listen"),
    ],
)
def test_what_the_user_can_fix_is_one_line(args: list[str], problem: str, tmp_path: Path) -> None:
    ran = run_prixlm("serve", *args, "--port", 0, cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert problem in ran.stderr and ran.stderr.count("\n") == 1
