"""Templates and static files of the pages: text of a KB is escaped, and no path is followed."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import resources
from typing import Any
from urllib.parse import urlencode, urlsplit

import jinja2
from fastapi import Request, Response

from prixlm.reports.console import language_name
from prixlm.service import markup
from prixlm.service.answering.concepts import NotFound

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def make_environment() -> jinja2.Environment:
    """Return the templates with the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("prixlm.service", "templates"),
        autoescape=True,
        auto_reload=False,  # an update of the package must not mix with the code that runs
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": markup.clean,
        "count": markup.show_count,
        "direction": markup.direction,
        "entity_url": lambda id: f"/entity?{urlencode({'id': id})}",
        "key_tail": markup.key_tail,
        "language": language_name,
        "name": markup.show_name,
        "percent": markup.show_percent,
        "query": _query_string,
        "refine": _refine,
        "sentence": markup.as_sentence,
        "short": markup.show_short,
        "shorten": markup.shorten,
        "when": lambda time: datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M"),
    }
    environment.tests["web_address"] = lambda url: urlsplit(url).scheme in ("http", "https")
    return environment


def static_files() -> Callable[[Request, str], Response]:
    """Return the endpoint of the static files, which are few and stay in memory.

    A name that is not among them is not found: no path of a request reaches the file system.
    """
    files = {}
    for file in (resources.files("prixlm.service") / "static").iterdir():
        content = file.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        files[file.name] = (content, etag, _MEDIA_TYPES[file.name.rpartition(".")[2]])

    def read_static(request: Request, name: str) -> Response:
        if name not in files:
            raise NotFound("this server has no such file.")
        content, etag, media_type = files[name]
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return read_static


def _query_string(values: Mapping[str, Any]) -> str:
    return urlencode({key: value for key, value in values.items() if value not in (None, "")})


@jinja2.pass_context
def _refine(context: jinja2.runtime.Context, changes: Mapping[str, Any]) -> str:
    return str(context["place"].address(**changes))
