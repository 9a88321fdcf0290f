"""Connections to the Hub that another thread can cut, so that a thread that waits on one of them wakes up at once.

A thread that waits for a connection, a handshake or the next byte sits in the kernel. Closing its socket does not wake
it; shutting the socket down does. So this module makes the connections of an HTTP client and keeps a second handle on
every socket, from before it connects until it is closed. The handle cannot come to mean another file meanwhile, and
stays valid when TLS takes the socket over. Only waiting for a silent name server cannot be cut short.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 300.0  # a commit of many files is answered when it is done


def new_client() -> httpx2.Client:
    """The HTTP client for the Hub's client, with timeouts; by default it would wait for ever."""
    import httpx2
    from huggingface_hub.utils._http import default_client_factory

    made = default_client_factory()
    made.timeout = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return made


class Lines:
    """One HTTP client, made when it is first needed, with connections that can be cut."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None
        self._handles: set[socket.socket] = set()
        self._is_cut = False

    def client(self) -> httpx2.Client:
        with self._lock:
            if self._client is None:
                self._client = new_client()
                # neither library lets its user choose where connections come from, proxies included, otherwise
                for transport in (self._client._transport, *self._client._mounts.values()):
                    pool: Any = getattr(transport, "_pool", None)
                    if pool is not None:
                        assert hasattr(pool, "_network_backend")
                        pool._network_backend = _Backend(self)
            return self._client

    def cut(self) -> None:
        """End every connection now; none can be made any more."""
        with self._lock:
            self._is_cut = True
            for handle in self._handles:
                with suppress(OSError):  # its peer was faster
                    handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections; no thread may be reading."""
        self.cut()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        for handle in tuple(self._handles):
            self.forget(handle)

    def keep(self, made: socket.socket) -> socket.socket:
        """A handle on `made`, by which it is cut; OSError when it is too late for a connection."""
        with self._lock:
            if self._is_cut:
                raise OSError("the connections to the Hub were cut")
            handle = made.dup()
            self._handles.add(handle)
            return handle

    def forget(self, handle: socket.socket) -> None:
        with self._lock:
            self._handles.discard(handle)
        handle.close()


class _Backend:
    """The source of the client's connections; the client needs these methods, not a class."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[Any, ...]] | None = None,
    ) -> _Line:
        import httpcore2

        try:
            return self._connected(host, port, timeout, local_address, socket_options or ())
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error

    def _connected(
        self,
        host: str,
        port: int,
        timeout: float | None,
        local_address: str | None,
        options: Iterable[tuple[Any, ...]],
    ) -> _Line:
        """A connection to the first address of `host` that accepts one; raises the last refusal where none does."""
        refusal = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            made = socket.socket(family, kind, protocol)
            handle = None
            try:
                made.settimeout(timeout)
                if local_address is not None:
                    made.bind((local_address, 0))
                for option in (*options, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
                    made.setsockopt(*option)
                handle = self._lines.keep(made)
                made.connect(address)
                return _Line(self._lines, made, handle)
            except BaseException as error:
                if handle is not None:
                    self._lines.forget(handle)
                made.close()
                if not isinstance(error, OSError):
                    raise
                refusal = error
        raise refusal


class _Line:
    """A connection in the form that the client wants, with the handle by which it is cut."""

    def __init__(self, lines: Lines, made: socket.socket, handle: socket.socket) -> None:
        from httpcore2._backends.sync import SyncStream

        self._lines = lines
        self._stream: Any = SyncStream(made)
        self._handle = handle

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return bytes(self._stream.read(max_bytes, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._lines.forget(self._handle)
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> _Line:
        try:
            self._stream = self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            self.close()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
