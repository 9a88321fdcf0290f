"""Who visits in an evening, as far as the app can tell: the visitors of benchmarks/evening.py."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import httpx

from benchmarks.evening_audit import SECRET, Records
from localhub.process import LocalHubProcess

METHODS: Sequence[tuple[str, dict[str, float]]] = (
    *(("linear", {}), ("task_arithmetic", {"lambda": 0.5}), ("ties", {}), ("dare_linear", {}), ("dare_ties", {})),
    *(("ram", {}), ("ram_plus", {"r": 0.1}), ("ram_quantile", {})),
)
PAGES = (
    "/",
    "/merge",
    "/activity",
    "/docs",
    "/job?id={job}",
    "/job?id={job}",
    "/watchers",
    "/leaderboard",
    "/model?id=zoo/math-agent",
    "/diff",
)


class Visitor:
    """A browser, as far as the app can tell: cookies, pages with their load events, and the named endpoints."""

    def __init__(self, url: str, hub: LocalHubProcess, records: Records, name: str | None) -> None:
        self.url, self.hub, self.records, self.name = url, hub, records, name
        self.signed_in, self.last = False, tuple[Any, ...]()
        self.http = self._client()

    def _client(self) -> httpx.Client:
        def keep(_: httpx.Response) -> None:
            for cookie in client.cookies.jar:
                cookie.secure = False  # browsers send such cookies to 127.0.0.1, too

        client = httpx.Client(base_url=self.url, timeout=300.0, event_hooks={"response": [keep]})
        return client

    def sign_out(self) -> None:
        self.http.close()
        self.http, self.signed_in = self._client(), False

    def sign_in(self, *, private: bool) -> bool:
        try:
            link = "/login/huggingface?_target_url=/" + ("&with=read-repos" if private else "")
            asked = self.http.get(link).headers.get("location", "")
            if asked.startswith(self.hub.endpoint):
                bearer = {"Authorization": f"Bearer {self.hub.tokens[str(self.name)]}"}
                back = httpx.get(asked, headers=bearer, timeout=60.0).headers.get("location", "")
                if back.startswith(self.url):
                    self.signed_in = self.http.get(back).status_code in (302, 307)
        except httpx.HTTPError as error:
            self.records.count("sign in", self.records.excused(type(error).__name__))
            return False
        self.records.count("sign in", "ok" if self.signed_in else "refused")
        return self.signed_in

    def call(self, api: str, *data: Any, forbidden: bool = False) -> Any:
        """One named endpoint: its value, or the text of its refusal."""
        began, path = time.monotonic(), f"/gradio_api/call/{api}"
        try:
            answer = self.http.post(path, json={"data": list(data)})
            if answer.status_code == 200:
                answer = self.http.get(f"{path}/{answer.json()['event_id']}")
            event = re.search(r"event: (complete|error)\ndata: (.*)", answer.text)
            good = event is not None and event[1] == "complete"
            value = json.loads(event[2])[0] if good and event else (event[2] if event else answer.text[:300])
        except (httpx.HTTPError, ValueError, KeyError) as error:
            good, value = False, self.records.excused(type(error).__name__)
        self.records.called(self.name, api, good, value, time.monotonic() - began, forbidden=forbidden)
        return value

    def merge(self, draw: random.Random, number: int) -> None:
        recipe, closed = recipe_of(draw, str(self.name))
        private = closed or draw.random() < 0.7
        name = f"{SECRET}-m{number}" if private else f"m{number}"
        if draw.random() < 0.08:  # a target that is taken
            name = f"{SECRET}-m1" if private else "m1"
        self.last = (recipe, f"{self.name}/{name}", private, "")
        self.call("start_merge", *self.last)

    def page(self, path: str) -> None:
        """The page, and what its load events bring."""
        began, texts, status = time.monotonic(), list[str](), 0
        try:
            answer = self.http.get(path)
            status, query = answer.status_code, path.partition("?")[2]
            texts.append(answer.text)
            config = re.search(r"window\.gradio_config = (\{.*?\});</script>", answer.text, re.S)
            for event in json.loads(config[1])["dependencies"] if config else ():
                if not any(target[1] == "load" for target in event["targets"]):
                    continue
                body = {"data": [None] * len(event["inputs"]), "fn_index": event["id"], "session_hash": f"s{began}"}
                if event["queue"]:
                    join = self.http.post(f"/gradio_api/queue/join?{query}", json=body)
                    told = self.http.get("/gradio_api/queue/data", params={"session_hash": f"s{began}"})
                    status = max(status, join.status_code, told.status_code)
                else:
                    told = self.http.post(f"/gradio_api/run/predict?{query}", json=body)
                    status = max(status, told.status_code)
                texts.append(told.text)
        except (httpx.HTTPError, ValueError) as error:
            texts.append(self.records.excused(type(error).__name__))
        page = path.partition("?")[0]
        self.records.loaded(self.name, page, status, "\n".join(texts), time.monotonic() - began)


def recipe_of(draw: random.Random, user: str) -> tuple[dict[str, Any], bool]:
    """A recipe as users write it, and whether a parent of it is private or gated."""
    method, parameters = draw.choice(METHODS)
    if draw.random() < 0.3:
        base, pool = "ada/big-base", [f"ada/big-agent{i}" for i in range(3)]
    else:
        base = "bob/gated-base" if draw.random() < 0.15 else "zoo/base"
        pool = [*(f"zoo/{name}-agent" for name in ("math", "tool", "mem")), f"{user}/{SECRET}-agent"]
    agents = draw.sample(pool, draw.choice((2, 2, 3)))
    recipe = {"base": base, "agents": agents, "method": method, "seed": draw.randrange(10**6)}
    return {**recipe, **({"parameters": parameters} if parameters else {})}, "gated" in base or SECRET in str(agents)
