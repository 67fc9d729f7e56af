"""`fledge serve`: checks that stop a misconfigured start early with one clear line; then serving until a signal."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from fledge.base.child import http_url
from fledge.base.console import plural
from fledge.base.errors import ServerError
from fledge.base.memory import resident_memory
from fledge.engine import PLAIN, Engine, EngineOptions
from fledge.engine.memory import free_memory
from fledge.released import load_pair
from fledge.server.app import create_app
from fledge.server.generation import Server
from fledge.server.options import ServerOptions
from fledge.sources.find import given_name
from fledge.target.options import TargetOptions

if TYPE_CHECKING:
    from fledge.learn import LearnOptions

logger = logging.getLogger("fledge.server")

SWITCH_S = 0.001  # switch interval between the engine's thread and the event loop
_PROBE_S = 1.0  # seconds to wait for another process that may listen on the port
_CLOSE_S = 5  # to flush the last bytes when all answers are done


def serve(
    target: TargetOptions,
    options: ServerOptions,
    limits: EngineOptions,
    *,
    head: str | None,
    plain: bool = False,
    learn: LearnOptions | None = None,
) -> None:
    """Load, warm up and serve until a signal; `head` is a folder, or None for the shipped one, if one fits.

    `target`: its template's options are defaults for requests. `learn`: train a head meanwhile.
    """
    with bind(options) as listener:  # before loading, which may take minutes
        engine = load_engine(target, limits, head=head, plain=plain, learn=learn)
        engine.generate([[0]], max_tokens=8, ignore_eos=True)  # warm up
        engine.restart_stats()
        sys.setswitchinterval(SWITCH_S)
        names = options.model_names or (given_name(target.model) or engine.target.name,)
        app = create_app(engine, options.changed(model_names=names, target=target.model))
        gc.collect()
        gc.freeze()  # collections skip existing objects: scanning them would take a tenth of a second each
        logger.info("%s", memory_line(engine))
        host = listener.getsockname()[0]
        if host not in ("127.0.0.1", "::1") and not options.api_keys:
            logger.warning("the server has no API keys: anyone who can reach %s may use it", host)
        listen(listener)  # clients may connect once the next line is logged
        here, name = url(listener), app.state.server.model_names[0]
        logger.info("serving %s on %s: open it to chat, or point a client to %s/v1", name, here, here)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        server = DrainingServer(config, app.state.server)
        server.run(sockets=[listener])
        if server.force_exit:  # a normal exit would wait for the engine's thread, which may be in a kernel
            logger.warning(
                "stopped immediately; %s not finished", plural(app.state.server.worker.unfinished, "answer")
            )
            logging.shutdown()
            os._exit(128 + server.signal)


def load_engine(
    target: TargetOptions,
    limits: EngineOptions,
    *,
    head: str | None,
    plain: bool = False,
    learn: LearnOptions | None = None,
) -> Engine:
    """The engine, after checks that report problems before loading fails half-way."""
    plain = plain or (head is None and limits.own_drafter is not None)
    limits.check_head(given=not plain or learn is not None)
    if learn is not None and limits.tree == PLAIN:
        raise ServerError(
            "learning is for a draft head, which a plain tree never uses; leave one of them out"
        )
    loaded, drafts = load_pair(target, head, plain=plain)
    if loaded.device.type == "cpu":
        check_memory(loaded.memory_bytes, free_memory(loaded.device))
    if learn is None:
        return Engine(loaded, drafts, limits)
    from fledge.learn import Learning  # with what trains

    learning = Learning(loaded, learn, drafts, draft_weights=limits.draft_weights)
    return Engine(loaded, learning.head, limits, recorder=learning)


def memory_line(engine: Engine) -> str:
    """The process's memory, and the bound of the KV pool, which on a CPU takes no more than has been used of it."""
    decoder = engine.target.decoder
    tokens = engine.stats().pages * decoder.page_size
    bound = f"{engine.kv_bytes / 2**30:.1f} GiB ({tokens:,} tokens; --kv-tokens changes it)"
    if decoder.device.type != "cpu":
        return f"memory: the KV pool takes {bound}"
    return f"memory: {resident_memory() / 2**30:.1f} GiB; the KV pool grows by use, to at most {bound}"


def check_memory(needed: float, available: int) -> None:
    """Raise a ServerError if the target's weights alone, `needed` bytes, don't fit in `available` bytes."""
    if needed > available:
        raise ServerError(
            f"the target's weights take {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB of memory are "
            "available; free some, use --quantization q8_0 or q4_0, or a smaller target"
        )


def bind(options: ServerOptions) -> socket.socket:
    """The socket to listen on; a ServerError if it is in use."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio disables Nagle's algorithm (TCP_NODELAY) only if the protocol number is set; otherwise the second of two
    # small writes waits for the client's delayed acknowledgement, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform == "linux":
        # A connection is closed once its reader has read everything; this limits the wait for one that never does.
        milliseconds = min(int(1e3 * options.stall_timeout), (1 << 31) - 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        # A port used by an ended server is free immediately; one that is bound, even without a listener, isn't.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        # Not every system refuses a port that another process listens on.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PROBE_S)
            if options.port and probe.connect_ex((options.host, options.port)) == 0:
                raise OSError(errno.EADDRINUSE, "address already in use")
    except OSError as error:
        listener.close()
        raise _unusable(f"{options.host}:{options.port}", error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect to a socket of `bind`'s; a ServerError if another one listens on its port."""
    # Connections that an earlier server has closed hold the port for a minute (TIME_WAIT), except from such sockets.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.listen()
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _unusable(f"{host}:{port}", error) from error


def _unusable(place: str, error: OSError) -> ServerError:
    if error.errno == errno.EADDRINUSE:
        return ServerError(f"{place} is in use; choose another --port, or stop its user")
    return ServerError(f"can't listen on {place} ({error.strerror or error}); check --host and --port")


def url(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    return http_url(*listener.getsockname()[:2])


class DrainingServer(uvicorn.Server):
    """Uvicorn that, when stopped, lets running answers finish while it rejects new ones."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._draining: asyncio.Future[None] | None = None
        self.signal = 0  # the last one received

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; also stores the loop for signals."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT: drain; a second one: stop now."""
        self.signal = sig
        if self._server.worker.draining or not hasattr(self, "_loop"):
            self.should_exit = self.force_exit = True
            logging.getLogger("uvicorn.error").disabled = True  # it would log what it cancels as a traceback
            return
        self._server.worker.draining = True
        self._loop.call_soon_threadsafe(self._begin_drain, signal.Signals(sig).name)

    def _begin_drain(self, name: str) -> None:
        self._draining = asyncio.ensure_future(self._drain(name))

    async def _drain(self, name: str) -> None:
        worker, seconds = self._server.worker, self._server.options.drain_timeout
        logger.info("%s: finishing %s within %g s", name, plural(worker.unfinished, "answer"), seconds)
        failed = await worker.drain(seconds)
        logger.info("drained; %s not finished", plural(failed, "answer"))
        self.should_exit = True
