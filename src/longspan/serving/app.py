"""The API of a server, and its page, as an ASGI application: `app_of`."""

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Body, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from longspan.errors import UserError, sentence_of
from longspan.explanations.methods import METHODS
from longspan.machine.printing import json_text
from longspan.serving.corrections import Corrections, read_list
from longspan.serving.model import Limits, Refusal, Service
from longspan.tasks.base.task import Run

#: Names of this machine, which a page elsewhere cannot take.
LOCAL = ("localhost", "127.0.0.1", "::1")
#: What needs no token: the page itself, and the state that load balancers ask for.
_OPEN = ("/", "/page.js", "/page.css", "/health")


@dataclass
class Inputs:
    """Inputs of `/predict`."""

    inputs: Annotated[
        list[Any],
        Body(
            description='Texts, objects with the columns of the training data, or files as {"name": "a.pdf", "bytes": '
            "BASE64}. Pictures and recordings in columns are objects with bytes in Base64, or arrays.",
            examples=[["Dear aunt, thank you."]],
        ),
    ]
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012


@dataclass
class Question:
    """Input of `/explain`, and what is asked about it: see `longspan.explain`."""

    input: Any
    of: str = ""
    at: Annotated[float | None, Body(allow_inf_nan=False)] = None
    method: str = "removal"
    check: bool = False
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012


@dataclass
class Correction:
    """An input with the label that it should have; several labels where inputs have several."""

    input: Any
    label: str | list[str]
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012


def app_of(
    run: Run,
    limits: Limits | None = None,
    *,
    token: str = "",
    hosts: Sequence[str] = LOCAL,
    corrections: Path | None = None,
    to_label: Path | None = None,
) -> FastAPI:
    """Application that answers for a run.

    Args:
        run: The run, as `longspan.load(RUN).loaded` is.
        limits: Limits of requests.
        token: Bearer token that requests must have; "" for none.
        hosts: Names that requests may use for this machine; none for any name.
        corrections: File to which corrections are appended; by default RUN-corrections.jsonl, next to it.
        to_label: Table of `longspan suggest`, which the page walks through.
    """
    limits = limits or Limits()
    service = Service(run, limits)
    kept = Corrections(service, corrections or run.folder.with_name(f"{run.folder.name}-corrections.jsonl"))
    listed = read_list(service, to_label) if to_label is not None else []
    active = 0
    # Files take time to read; a request that is late does not wait for it.
    readers = ThreadPoolExecutor(thread_name_prefix="reader")

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        readers.shutdown()
        await asyncio.to_thread(service.close)

    # Its pages of documentation load scripts from elsewhere.
    app = FastAPI(title=f"longspan: {run.folder.name}", docs_url=None, redoc_url=None, lifespan=lifespan)

    @contextlib.contextmanager
    def place() -> Iterator[None]:
        nonlocal active
        if active >= limits.queue:
            raise Refusal(429, f"expected at most {limits.queue} requests at once, got more; try again later.")
        active += 1
        try:
            yield
        finally:
            leave()

    def leave() -> None:
        nonlocal active
        active -= 1

    async def result_of(work: Future[Any]) -> Any:
        """Result of work in a thread. A request that is late keeps its place until the work that has begun ends."""
        nonlocal active
        try:
            return await asyncio.shield(asyncio.wrap_future(work))
        except asyncio.CancelledError:
            if not work.cancel():
                active += 1
                loop = asyncio.get_running_loop()
                work.add_done_callback(lambda _: loop.call_soon_threadsafe(leave))
            raise

    async def rows_of(inputs: list[Any]) -> Any:
        return await result_of(readers.submit(service.rows, inputs))

    async def predicted(inputs: list[Any]) -> Response:
        with place():
            found = await result_of(service.predictions(await rows_of(inputs)))
        if all(one.error is not None for one in found):
            raise Refusal(422, f"{found[0].where}: {found[0].error}")
        return _json({"predictions": [one.to_dict() for one in found]})

    @app.get("/health", summary="State of the server")
    async def health() -> Response:
        return _json({"status": "ok", "task": run.task.name, "requests": active})

    @app.get("/metadata", summary="The run: its task, inputs, labels and the limits of requests")
    async def metadata() -> Response:
        more = {
            "methods": list(METHODS),
            "corrects": kept.possible,
            "to_label": len(listed),
            "first_open": kept.first_open(listed),
        }
        return _json(service.metadata() | more)

    @app.post("/predict", summary="Predictions for inputs, as `longspan predict` prints them")
    async def predict(body: Inputs) -> Response:
        return await predicted(body.inputs)

    @app.post("/predict/file", summary="Predictions for one file", openapi_extra=_FILE)
    async def predict_file(request: Request, name: Annotated[str, Query()]) -> Response:
        return await predicted([{"name": name, "bytes": base64.b64encode(await request.body()).decode()}])

    @app.post("/explain", summary="Scores of an input's parts; a page of HTML where that is accepted")
    async def explain(body: Question, request: Request) -> Response:
        with place():
            options = {"of": body.of, "at": body.at, "method": body.method, "check": body.check}
            rows = await rows_of([body.input])
            found = await result_of(service.explanation(rows, **options))
        page = "text/html" in request.headers.get("accept", "")
        return Response(found.page(), media_type="text/html") if page else _json(found.to_dict())

    @app.post("/corrections", summary="Keep the label that an input should have, for training")
    async def correct(body: Correction) -> Response:
        with place():
            rows = await rows_of([body.input])
            labels = [body.label] if isinstance(body.label, str) else body.label
            count = await result_of(readers.submit(kept.add, rows, labels))
        return _json({"corrections": count})

    @app.get("/to-label/{number}", summary="One of the examples to label, and the labels that it was given")
    async def example(number: int) -> Response:
        if not 0 <= number < len(listed):
            raise Refusal(404, f"expected a number below {len(listed)}, got {number}; choose another.")
        return _json(listed[number] | {"number": number, "labels": kept.labels_of(listed[number]["input"])})

    for path, kind in (("/", "index.html"), ("/page.js", "page.js"), ("/page.css", "page.css")):
        app.get(path, include_in_schema=False)(functools.partial(_page, kind))

    @app.exception_handler(UserError)
    async def refuse(request: Request, error: UserError) -> Response:
        return _json({"detail": str(error)}, getattr(error, "status", 422))

    @app.exception_handler(RequestValidationError)
    async def refuse_form(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "json_invalid":
            told = f"expected JSON, got something else ({first['ctx']['error']}, character {first['loc'][-1]})"
        elif first["loc"] == ("body",) and isinstance(error.body, bytes):
            told = "expected JSON with the header Content-Type: application/json, got another type"
        else:
            told = f"{first['msg']} in {place}"
        return _json({"detail": f"{told}; see /openapi.json."}, 422)

    @app.exception_handler(OSError)
    @app.exception_handler(MemoryError)
    @app.exception_handler(ImportError)
    @app.exception_handler(RuntimeError)
    async def fail(request: Request, error: Exception) -> Response:
        if (sentence := sentence_of(error)) is None:
            raise error
        return _json({"detail": sentence}, 503)

    app.add_middleware(_Guard, limits=limits, token=token, hosts=hosts)
    return app


_FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _json(value: Any, status: int = 200) -> Response:
    text = json_text(value).encode("utf-8", "backslashreplace")
    return Response(text, status, media_type="application/json", headers={"Retry-After": "1"} if status == 429 else {})


_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


async def _page(name: str) -> Response:
    content = (resources.files("longspan.serving") / "page" / name).read_bytes()
    return Response(content, media_type=_KINDS[Path(name).suffix])


class _Guard:
    """Refuses requests before they are read: other names of this machine, other sites, no token, too many bytes.

    Pages of other sites cannot use a server that binds to this machine, not even by a name of their own that leads
    there (DNS rebinding). A request that is late gets 504.
    """

    def __init__(self, app: Any, limits: Limits, token: str, hosts: Sequence[str]) -> None:
        self.app, self.limits, self.token, self.hosts = app, limits, token, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        read, begun = 0, False

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limits.body:
                raise HTTPException(413, self._too_large())
            return message

        async def answered(message: Any) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_headers()]
            await send(message)

        if (refusal := self._refusal(scope["path"], headers)) is not None:
            await refusal(scope, receive, answered)
            return
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self.app(scope, counted, answered)
        except TimeoutError:
            if begun:
                raise
            told = f"expected an answer within {self.limits.seconds:g} s, got none; send less, or try again later."
            await _json({"detail": told}, 504)(scope, receive, answered)

    def _refusal(self, path: str, headers: dict[str, str]) -> Response | None:
        host = _address(f"//{headers.get('host', '')}")[0]
        if self.hosts and host not in self.hosts:
            return _json({"detail": f"expected the host {self.hosts[0]}, got {host!r}; use that name."}, 421)
        origin = headers.get("origin")
        if origin is not None and _address(origin)[1] != headers.get("host"):
            return _json({"detail": f"expected a page of this server, got one of {origin!r}."}, 403)
        if self.token and path not in _OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.encode("latin-1"), self.token.encode()):
                refusal = _json(
                    {"detail": "expected the header Authorization: Bearer TOKEN, got none or another."}, 401
                )
                refusal.headers["WWW-Authenticate"] = "Bearer"
                return refusal
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return _json({"detail": f"expected a number of bytes as Content-Length, got {length!r}."}, 400)
        return _json({"detail": self._too_large()}, 413) if int(length) > self.limits.body else None

    def _too_large(self) -> str:
        return f"expected at most {self.limits.body:,} bytes in a request, got more; send less at once."


def _address(url: str) -> tuple[str, str]:
    """Name of the machine in an address, without and with the port."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.netloc
    except ValueError:
        return "", ""


@functools.cache
def _headers() -> list[tuple[bytes, bytes]]:
    """Headers of all answers. The page loads from here alone, and frames explanations with their script."""
    script = (resources.files("longspan.report") / "templates" / "explanation.js").read_bytes()
    known = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{known}'; style-src 'self' 'unsafe-inline'; "
        "img-src data: blob:; media-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    more = {b"x-content-type-options": b"nosniff", b"referrer-policy": b"no-referrer", b"cache-control": b"no-store"}
    return [(b"content-security-policy", policy.encode()), *more.items()]
