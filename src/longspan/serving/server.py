"""The server's processes: `serve`."""

import dataclasses
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from longspan.errors import UserError
from longspan.machine.imports import allow
from longspan.machine.limits import cores
from longspan.machine.printing import note
from longspan.machine.session import end_with_parent, quieten_transformers, use_fastest_exact_products
from longspan.serving.app import LOCAL, app_of
from longspan.serving.model import Limits
from longspan.verbs.runs import load_run

#: Environment variable with the token, as others see the command lines of processes.
TOKEN = "LONGSPAN_TOKEN"


@dataclasses.dataclass(frozen=True)
class _Application:
    """Makes the application, in each process anew."""

    run: Path
    options: dict[str, Any]
    limits: dict[str, Any]
    checkpoint: int | str | None
    allow_imports: Sequence[str]

    def __call__(self) -> Any:
        # Requests are answered first.
        end_with_parent()
        quieten_transformers()
        use_fastest_exact_products()
        with allow(*self.allow_imports):
            run = load_run(self.run, checkpoint=self.checkpoint)
        return app_of(run, Limits(**self.limits), **self.options)


def serve(
    run: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    token: str = "",
    corrections: Path | None = None,
    to_label: Path | None = None,
    limits: dict[str, Any] | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Sequence[str] = (),
    announce: Callable[[dict[str, Any]], None] = lambda told: None,
) -> None:
    """Answer requests over HTTP until SIGTERM or an interrupt; requests that were accepted are answered first.

    Args:
        run: The run folder.
        host: Address to bind to.
        port: Port; 0 for one that is free.
        workers: Number of processes, each with the model.
        token: Bearer token that requests must have; by default that of the environment variable LONGSPAN_TOKEN.
        corrections: File to which corrections are appended; by default RUN-corrections.jsonl, next to it.
        to_label: Table of `longspan suggest`, which the page walks through.
        limits: Fields of `longspan.serving.model.Limits` that differ from its defaults.
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.
        announce: Called with the address and more, once requests can come.

    Raises:
        UserError: The run cannot be used, or the port is taken.
    """
    if workers < 1:
        raise UserError(f"expected at least one worker, got {workers}; raise it.")
    for name, value in (limits or {}).items():
        if value <= 0:
            raise UserError(f"expected a limit above 0 (--max-{name}), got {value:g}; raise it.")
    token = token or os.environ.get(TOKEN, "")
    local = _is_local(host)
    if not local and not token:
        note(f"anyone who reaches {host} can use this server, as it has no token; set {TOKEN}")
    options = {"token": token, "hosts": (host, *LOCAL) if local else (), "corrections": corrections}
    application = _Application(
        Path(run), options | {"to_label": to_label}, limits or {}, checkpoint, tuple(allow_imports)
    )
    # Mistakes come before the port is taken; processes load it again.
    made = application()
    bound = _bound(host, port)
    found = bound.getsockname()
    address = f"http://{f'[{found[0]}]' if ':' in found[0] else found[0]}:{found[1]}"
    told = {"address": address, "run": str(run), "workers": workers, "process": os.getpid()}
    shared: dict[str, Any] = {"log_level": "warning", "server_header": False, "ws": "none", "lifespan": "on"}
    if workers > 1:
        del made
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
        config = uvicorn.Config(application, factory=True, workers=workers, timeout_worker_healthcheck=60, **shared)
        # Connections wait until a process has its model.
        bound.listen(config.backlog)
        announce(told)
        Multiprocess(config, sockets=[bound]).run()
        return
    server = _Server(uvicorn.Config(made, **shared), lambda: announce(told))
    # uvicorn ends as the signal would, once all is answered.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server.run(sockets=[bound])


class _Server(uvicorn.Server):
    """Says when requests can come."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"expected to bind to {host}, port {port}, got an error ({reason}); choose another port."
        ) from None
    found.set_inheritable(True)
    return found
