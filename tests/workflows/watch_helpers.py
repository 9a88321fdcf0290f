"""What the watcher tests share: short rules, a web server, agents pushed by the real client."""

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml
from builders import random_base, sparse_agent, write_model
from fastapi import FastAPI
from huggingface_hub import HfApi
from starlette.routing import BaseRoute

from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from localhub.process import LocalHubProcess
from workflows.bot import Bot
from workflows.jobs.jobs import Job
from workflows.watchers.facts import Facts
from workflows.watchers.rule import AgentRule
from workflows.watchers.rules import rule_from_yaml
from workflows.watchers.runner import Turn
from workflows.watchers.webhook import PATH, Push

SECRET = "the webhook's secret"
RIGHT = {"X-Webhook-Secret": SECRET}
_numbers = itertools.count(1)
BASE_WEIGHTS = random_base(seed=0)


def rule_data(**changes: Any) -> dict[str, Any]:
    """The plain data of a valid rule; a change to None leaves a key out."""
    data: dict[str, Any] = {
        "name": "watch",
        "owner": "ada",
        "base": "zoo/base",
        "agents": {"authors": ["zoo"]},
        "recipe": {"method": "ram"},
        "target": "ada/watch-{set}",
        "budget": 3,
        **changes,
    }
    return {key: value for key, value in data.items() if value is not None}


def rule_of(**changes: Any) -> AgentRule:
    rule = rule_from_yaml(yaml.safe_dump(rule_data(**changes)))
    assert isinstance(rule, AgentRule)
    return rule


def facts(name: str, version: int = 1, **changes: Any) -> Facts:
    """An acceptable agent of zoo/base: `version` decides its commit and its weights."""
    values: dict[str, Any] = {
        "id": name if "/" in name else f"zoo/{name}",
        "sha": f"{version:040x}",
        "bases": ("zoo/base",),
        "license": "apache-2.0",
        "weights": f"weights of {name} {version}",
        "weight_bytes": 1000,
        "parameters": 500,
        **changes,
    }
    return Facts(**values)


BASE = facts("base", bases=())


class Agents:
    """Pushes tiny models to a Hub as ada."""

    def __init__(self, hub: LocalHubProcess, folder: Path) -> None:
        self.api = HfApi(hub.endpoint, token=hub.tokens["ada"])
        self.folder = folder

    def base(self, *, agents: int = 0) -> str:
        """A new base with so many agents of it."""
        name = f"ada/base-{next(_numbers)}"
        self.push(name, BASE_WEIGHTS, {"license": "apache-2.0"})
        for _ in range(agents):
            self.agent(name)
        return name

    def family(self, count: int) -> tuple[str, list[str]]:
        """A new base and so many agents of it, by name."""
        base = self.base()
        return base, sorted(self.agent(base) for _ in range(count))

    def agent(self, base: str, *, name: str = "", seed: int = 0, card: dict[str, Any] | None = None) -> str:
        """A new agent, or new weights of one that is there."""
        number = next(_numbers)
        name = name or f"ada/agent-{number}"
        weights = sparse_agent(BASE_WEIGHTS, density=0.05, seed=seed or number)
        self.push(name, weights, {"license": "apache-2.0", "base_model": base, "tags": ["rl"], **(card or {})})
        return name

    def push(self, name: str, tensors: Any, card: dict[str, Any], *, pull_request: bool = False) -> str:
        folder = write_model(self.folder / f"model-{next(_numbers)}", tensors)
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
        self.api.create_repo(name, exist_ok=True)
        return self.api.upload_folder(repo_id=name, folder_path=folder, create_pr=pull_request).oid

    def edit_card(self, name: str, text: str) -> str:
        old = Path(self.api.hf_hub_download(name, "README.md")).read_text()
        return self.api.upload_file(path_or_fileobj=(old + text).encode(), path_in_repo="README.md", repo_id=name).oid

    def head(self, name: str) -> str:
        return str(self.api.model_info(name).sha)


@contextmanager
def serving(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """The routes on a free port of loopback, through the server that the app uses."""
    server = uvicorn.Server(uvicorn.Config(FastAPI(routes=list(routes)), port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    pause = threading.Event()
    while not server.started:
        assert thread.is_alive()
        pause.wait(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def payload(repo: str, sha: str | None, ref: str = "refs/heads/main", **changes: Any) -> dict[str, Any]:
    """A delivery as the Hub sends it."""
    return {
        "event": {"action": "update", "scope": "repo.content"},
        "repo": {"type": "model", "name": repo, "id": "1" * 24, "private": False, "headSha": sha},
        "updatedRefs": [{"ref": ref, "oldSha": None, "newSha": sha}],
        "webhook": {"id": "2" * 24, "version": 3},
        **changes,
    }


def post(url: str, body: Any, headers: Any = RIGHT, method: str = "POST") -> tuple[int, Any]:
    """Status and answer of the webhooks' route to a body: JSON, bytes, or pieces whose length is not stated."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    answer = httpx.request(method, url + PATH, content=content, headers=headers, timeout=30, verify=False)  # no https
    return answer.status_code, answer.json() if answer.content.startswith(b"{") else answer.content


def deliver(bot: Bot, agents: Agents, *names: str) -> None:
    """The present heads of these repos were announced to the bot."""
    bot.inbox.receive([Push(name, agents.head(name)) for name in names])


def refuse(monkeypatch: pytest.MonkeyPatch, method: str, repo: str, error: HubmergeError) -> None:
    """Make a method of the Hub's client raise `error` where it is asked for `repo`."""
    plain = getattr(Hub, method)

    def refused(self: Hub, name: str, *more: Any) -> Any:
        if name == repo:
            raise error
        return plain(self, name, *more)

    monkeypatch.setattr(Hub, method, refused)


def rule_for(base: str, **changes: Any) -> AgentRule:
    return rule_of(**{"base": base, "agents": {"authors": ["ada", "bob"]}, "target": "ada/watched-{set}", **changes})


def jobs(bot: Bot) -> list[Job]:
    return list(bot.store.list_jobs(limit=1000))


def one(turns: list[Turn]) -> Turn:
    [turn] = turns
    assert turn.error is None, turn.error
    return turn


def joined(turn: Turn) -> list[str]:
    """The ids of the agents that a turn would merge."""
    return [agent.partition("@")[0] for agent in turn.decision.merge.recipe["agents"]]


def finish(bot: Bot, **result: Any) -> None:
    """The jobs are done, as a worker would leave them; `result` changes what they say."""
    while (job := bot.store.claim("worker")) is not None:
        bot.store.finish(job.id, job.fence, {"repo": job.payload.get("target"), "commit": "c" * 40, **result})


def skipped(turn: Turn) -> dict[str, str]:
    return {skip.subject: skip.code for skip in turn.decision.skips}
