"""`prixlm serve` and `prixlm mcp`: one KB for people, for other tools and for agents."""

import logging
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prixlm.cli.options import GraphOption, ModelOption
from prixlm.cli.terminal import print_lines, progress_bar
from prixlm.errors import PrixError, Stopped
from prixlm.threads import share_heaps
from prixlm.untrusted import SafeFormatter

if TYPE_CHECKING:
    from prixlm.service.workbench import Workbench

_Work = Annotated[
    Path | None, typer.Argument(metavar="WORK", help="A work folder of `prixlm enrich`.")
]
_KB = Annotated[Path | None, typer.Option("--kb", metavar="KB", help="A KB, instead of WORK.")]
_Proposals = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="With --kb: proposals for this KB.")
]
_Encoder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="An encoder of names, for linking.")
]
_Host = Annotated[
    str, typer.Option(help="Address to listen on; another than this machine needs --token.")
]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free port.")]
_Token = Annotated[
    str | None,
    typer.Option(
        metavar="SECRET", envvar="PRIXLM_TOKEN", help="Ask everyone for this secret first."
    ),
]
_LOGGED = 200
"""Characters of a message or line in the log."""
_END_SECONDS = 5
"""Seconds that running requests have to finish when the server ends."""


def serve(
    work: _Work = None,
    kb: _KB = None,
    proposals: _Proposals = None,
    model: ModelOption = None,
    encoder: _Encoder = None,
    graph: GraphOption = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    token: _Token = None,
) -> None:
    """Browse, ask and review in a browser; serve the JSON API and OpenRefine.

    Example: [b]prixlm serve work[/b]

    Example: [b]prixlm serve --kb kb --model model --port 8080[/b]
    """
    import uvicorn

    from prixlm.service.app import create_app
    from prixlm.service.security import Connection, Settings
    from prixlm.service.workbench import Folders, Workbench

    share_heaps()
    settings = Settings(host=host, token=token)
    folders = Folders(
        work=work, kb=kb, proposals=proposals, model=model, encoder=encoder, graph=graph
    )
    with _listen(host, port) as listening:
        with progress_bar() as progress:
            bench = Workbench(folders, progress)
        _log_to_stderr()
        config = uvicorn.Config(
            create_app(bench, settings),
            http=Connection,
            log_config=None,
            log_level="error",  # anyone can send what uvicorn warns of
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        # The models load while the first page is read.
        loading = threading.Thread(target=bench.warm_up, daemon=True)
        loading.start()
        _announce(bench, host, listening.getsockname()[1], token)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except Stopped:  # uvicorn passes Ctrl-C on when all requests are answered
            pass
        finally:
            bench.close()
    if loading.is_alive():
        # A thread that loads a model cannot be stopped, and libraries complain when Python ends
        # under it. All marks are on disk.
        sys.stdout.flush()
        os._exit(0)


def mcp(
    work: _Work = None,
    kb: _KB = None,
    proposals: _Proposals = None,
    model: ModelOption = None,
    encoder: _Encoder = None,
    graph: GraphOption = None,
) -> None:
    """Let an agent ask the KB: search, facts, completions, gaps (MCP over stdio).

    Example: [b]prixlm mcp work[/b]
    """
    from prixlm.service.mcp import make_server
    from prixlm.service.workbench import Folders, Workbench

    folders = Folders(
        work=work, kb=kb, proposals=proposals, model=model, encoder=encoder, graph=graph
    )
    _log_to_stderr()
    with progress_bar() as progress:
        bench = Workbench(folders, progress)
    try:
        make_server(bench).run("stdio")
    finally:
        bench.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, before anything slow is done; refuse a port in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
        # Connections inherit it. asyncio sets it only on sockets that it made itself; without it
        # the body of an answer waits 40 ms for the receipt of the head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PrixError(
            f"cannot listen on {host}, port {port} ({reason}): pass another "
            "--port, or --port 0 for a free one."
        ) from None


def _announce(bench: "Workbench", host: str, port: int, token: str | None) -> None:
    """Print the address, what the server offers and what it lacks."""
    status = bench.status()
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    secret = f"?token={token}" if token else ""
    counts = bench.overview().counts
    lines = [
        f"{counts['entities']:,} entities in {len(status.languages)} languages, "
        f"{counts['facts']:,} facts, {counts.get('proposals', 0):,} proposals.",
        f"Open {address}/{secret}",
        f"JSON API: {address}/api/openapi.json",
        f"OpenRefine: {address}/reconcile{secret}",
        *bench.lacks(),
        "Ctrl-C ends it.",
    ]
    print_lines(lines)


def _log_to_stderr() -> None:
    """Write warnings to stderr with the time and level: a log outlives the screen."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter(limit=_LOGGED))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
