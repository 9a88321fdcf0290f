"""Lanes: how many questions to the Hub the pages ask at once, for whom, and for how long.

A question to a slow Hub takes minutes. Anonymous visitors have a lane of their own, so that they cannot block the app
for signed-in ones; within a lane everybody has a share. A program's token gets it the lane of the signed-in, once the
Hub has said whose it is, which is asked in a third lane. A visitor who finds no room is refused at once, with
QuotaError. Waiting in gradio's queue would block all pages, which share it. The work runs in threads of the lane, and
a question that exceeds the lane's wall limit is refused. A thread cannot be ended from outside, so it keeps its place.
But past the limit it sends the Hub no further request (`ASKED_UNTIL`), and the request that it waits for has a time
limit of its own.

    lanes = Lanes(on_a_space=True)
    button.click(lanes.asking(handler, refused), …, **ASKING)

`handler` takes gr.Request, gr.OAuthProfile and gr.OAuthToken as `request`, `profile` and `token`, as those of
session.for_visitor do; `refused(error)` makes its outputs where there is no room, or the handler raises HubmergeError.
"""

import asyncio
import inspect
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Context
from functools import partial, wraps
from typing import Any

from hubmerge.errors import HubmergeError, QuotaError
from hubmerge.hub.errors import ASKED_UNTIL
from workflows.app.session import bearer_of, visitor_of
from workflows.values import Visitor

ANONYMOUS_AT_ONCE = 8
ANONYMOUS_EACH = 3  # of one address; IPv6 counts by the /64 that a line has
ANONYMOUS_S = 60.0
SIGNED_IN_AT_ONCE = 16  # with the other two lanes fewer than the 40 events that gradio runs at once
SIGNED_IN_EACH = 4
SIGNED_IN_S = 240.0
# the lanes refuse by themselves, so that nothing waits in gradio's queue
ASKING: Mapping[str, Any] = {"concurrency_limit": None}

Handler = Callable[..., Any]


class _Lane:
    """Places of one kind of visitors. Used on the event loop only."""

    def __init__(self, name: str, at_once: int, each: int, wall_s: float, hint: str) -> None:
        self._name, self._at_once, self._each, self._wall_s = name, at_once, each, wall_s
        self._later = f"Try again in a minute.{hint}"
        self._places = Counter[str]()  # by visitor

    async def run(self, visitor: str, work: Callable[[], Any]) -> Any:
        """`work()` in a thread; QuotaError where there is no place, and past the wall limit. The place is free when the
        thread has ended."""
        self.take(visitor)

        def asked() -> Any:
            ASKED_UNTIL.set(time.monotonic() + self._wall_s)
            return work()

        done = asyncio.wrap_future(in_thread(partial(Context().run, asked)))
        done.add_done_callback(lambda _: self._places.subtract([visitor]))
        ended, _ = await asyncio.wait([done], timeout=self._wall_s)
        if ended:
            return done.result()
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
        what, limit = "no answer was ready in the time that one question may take", f"at most {self._wall_s:g} s"
        raise QuotaError(what, expected=limit, next_step=self._later)

    def take(self, visitor: str) -> None:
        """Take a place; QuotaError when there is none."""
        self._places += Counter()  # without those who have none any more
        what = ""
        if self._places[visitor] >= self._each:
            what, limit = "too many questions of yours to the Hub are under way", f"at most {self._each} at once"
        elif self._places.total() >= self._at_once:
            what, limit = f"too many {self._name} visitors ask the Hub at once", f"at most {self._at_once}"
        if what:
            raise QuotaError(what, expected=limit, got="one more", next_step=self._later)
        self._places[visitor] += 1


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """The future of `work()`, in a thread for which the end of the process does not wait, as it would for a pool's."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  (whoever waits gets it)
            done.set_exception(error)

    threading.Thread(target=run, name="ask", daemon=True).start()
    return done


class Lanes:
    """The lanes of one app. `on_a_space`: requests come through the platform's proxy."""

    def __init__(self, *, on_a_space: bool = False) -> None:
        self._on_a_space = on_a_space
        hint = " Signed-in visitors have places of their own."
        self._anonymous = _Lane("anonymous", ANONYMOUS_AT_ONCE, ANONYMOUS_EACH, ANONYMOUS_S, hint)
        self._unproven = _Lane("unproven", ANONYMOUS_AT_ONCE, SIGNED_IN_EACH, ANONYMOUS_S, "")  # tokens
        self._signed_in = _Lane("signed-in", SIGNED_IN_AT_ONCE, SIGNED_IN_EACH, SIGNED_IN_S, "")

    def asking(
        self,
        handler: Handler,
        refused: Callable[[HubmergeError], Any],
        *,
        for_the_signed_in: bool = False,
        whose: Callable[[str], Visitor] | None = None,
        asks_nothing: bool = False,
    ) -> Handler:
        """`handler`, wrapped so that it runs in the visitor's lane.

        `for_the_signed_in`: the handler asks the Hub nothing for anonymous visitors, who then need no place.
        `whose`: asks the Hub whose a token is, where a program may send one instead of a session.
        `asks_nothing`: the handler asks the Hub nothing.
        """
        names = list(inspect.signature(handler).parameters)

        @wraps(handler)  # gradio reads what to pass from the signature, and the words of its API from the docstring
        async def asked(*given: Any) -> Any:
            values = dict(zip(names, given, strict=False))  # what follows is the handler's `*values`
            request, profile, token = (values.get(name) for name in ("request", "profile", "token"))
            visitor = visitor_of(profile, token)
            address = address_of(request, on_a_space=self._on_a_space)
            try:
                if whose is not None and (bearer := bearer_of(profile, token, request)) is not None:
                    visitor = await self._unproven.run(address, partial(whose, bearer))
                if asks_nothing or (visitor is None and for_the_signed_in):
                    return await asyncio.to_thread(handler, *given)
                lane, who = (self._anonymous, address) if visitor is None else (self._signed_in, visitor.name)
                return await lane.run(who, lambda: handler(*given))
            except HubmergeError as error:
                return refused(error)

        return asked


def address_of(request: Any, *, on_a_space: bool) -> str:
    """The address that sent an anonymous request: the connection's peer or, on a Space, the address that the platform
    states.

    The platform's proxies append to X-Forwarded-For, so a visitor's own entries stand to the left, and the last public
    address counts. Elsewhere anybody could write the header, so it is ignored.
    """
    client = getattr(request, "client", None)
    names = [client.host] if client is not None else []
    if on_a_space:
        names = [*str(request.headers.get("x-forwarded-for") or "").split(","), *names]
    addresses = [address for name in names if (address := _address(name.strip())) is not None]
    public = [address for address in addresses if address.is_global]
    found = next(reversed(public if on_a_space and public else addresses), None)
    if found is None:
        return ""
    if found.version == 6:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
