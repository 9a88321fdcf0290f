"""The server as a process: start, end, restart, crash; what it imports, and whom it answers."""

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session
from processes import ROOT, printed_by
from raw_requests import ask, batch, commit_files, header, large, post_commit, regular, status_of, upload, whole

from hubmerge.errors import HubUnavailableError, SourceNotFoundError
from localhub.process import LocalHubProcess
from localhub.users import load_users


def api_of(hub: LocalHubProcess, user: str = "ada") -> HfApi:
    return HfApi(hub.endpoint, token=hub.tokens[user])


def test_a_restart_keeps_everything(tmp_path):
    with LocalHubProcess(tmp_path / "data") as hub:
        ada = api_of(hub)
        repo = ada.create_repo("ada/kept", private=True).repo_id
        sha = commit_files(ada, repo, {"w.bin": b"weights", "README.md": b"---\nlicense: mit\n---\n"}).oid
        ada.create_tag(repo, tag="v1")
        ada.create_discussion(repo, title="A question")
        hook = ada.create_webhook(url="http://127.0.0.1:1/", watched=[{"type": "org", "name": "x"}], secret="s")
        keys = get_session().get(f"{hub.endpoint}/.well-known/jwks.json").json()
    with LocalHubProcess(tmp_path / "data") as hub:
        ada = api_of(hub)
        info = ada.model_info(repo)
        assert (info.sha, info.private, "license:mit" in info.tags) == (sha, True, True)
        path = ada.hf_hub_download(repo, "w.bin", revision="v1", cache_dir=tmp_path / "cache")
        assert Path(path).read_bytes() == b"weights"
        assert [d.title for d in ada.get_repo_discussions(repo)] == ["A question"]
        assert ada.get_webhook(hook.id).secret == "s"
        assert get_session().get(f"{hub.endpoint}/.well-known/jwks.json").json() == keys


def test_a_restart_keeps_the_port_while_it_is_free(tmp_path):
    """Cards have the addresses of what was merged; under others they would be taken for edited ones."""
    with LocalHubProcess(tmp_path / "hub") as hub:
        first = hub.endpoint
    with LocalHubProcess(tmp_path / "hub") as hub:
        assert hub.endpoint == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(first.rpartition(":")[2])))
        with LocalHubProcess(tmp_path / "hub") as hub:
            assert hub.endpoint != first


def test_kills_at_any_moment_leave_whole_commits_only(tmp_path):
    """Every commit sets two files, one regular and one large, to the same number; they never differ."""
    hub = LocalHubProcess(tmp_path / "data").start()
    acknowledged = 0
    try:
        repo = api_of(hub).create_repo("ada/pairs").repo_id
        for round_number in range(3):
            killer = threading.Timer(0.1 + 0.2 * round_number, os.kill, (hub.pid, signal.SIGKILL))
            killer.start()
            ada = api_of(hub)
            try:
                while True:
                    number = b"%d" % (acknowledged + 1)
                    file = large("b.bin", upload(ada, repo, number), len(number))
                    post_commit(ada, repo, header(), regular("a.txt", number), file).raise_for_status()
                    acknowledged += 1
            except httpx2.TransportError:
                pass
            killer.join()
            hub.kill()
            hub.start()
            ada = api_of(hub)
            names = {entry.path for entry in ada.list_repo_tree(repo)} & {"a.txt", "b.bin"}
            if not names:
                assert acknowledged == 0
                continue
            seen = [int(ask(ada, "GET", f"/{repo}/resolve/main/{name}").content) for name in ("a.txt", "b.bin")]
            # The commit whose answer was lost may have been made; one that was answered is never lost.
            assert seen[0] == seen[1]
            assert seen[0] in (acknowledged, acknowledged + 1)
            acknowledged = seen[0]
    finally:
        hub.kill()
    assert acknowledged > 0


def test_the_child_goes_when_its_parent_is_killed(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from localhub.process import LocalHubProcess\n"
        f"hub = LocalHubProcess(Path({str(tmp_path / 'data')!r})).start()\n"
        "print(hub.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    child = int(parent.stdout)
    try:
        psutil.Process(child).wait(timeout=60)
    except psutil.NoSuchProcess:
        return
    assert not psutil.pid_exists(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path, number):
    command = [sys.executable, "-m", "localhub", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        endpoint = json.loads(process.stdout.readline())["endpoint"]
        get_session().get(f"{endpoint}/api/models")  # keeps its connection open
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_taken_port_is_named(tmp_path, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(HubUnavailableError):
            LocalHubProcess(tmp_path / "data", port=taken.getsockname()[1]).start()
    assert "the embedded Hub cannot listen there in 127.0.0.1:" in capfd.readouterr().err


def test_a_users_file_replaces_the_default_users(lab, tmp_path):
    assert lab.tokens == {name: f"hf_{name}_write" for name in ("dora", "eve", "finn")}
    assert lab.oauth["client_id"] == "app"
    finn, eve = api_of(lab, "finn"), api_of(lab, "eve")
    repo = finn.create_repo("lab/own").repo_id
    assert finn.model_info(repo).private
    assert eve.model_info(repo).private
    assert status_of(eve.create_branch, repo, branch="x") == 403
    assert status_of(HfApi(lab.endpoint, token=False).model_info, repo) == 401
    oauth = {"client_id": "app", "client_secret": "a-long-secret"}
    for wrong, named in (
        ({"users": "nobody"}, "users"),
        ({"users": [], "oauth": {**oauth, "scopes": ["contribute-repos"]}}, r"oauth\.scopes"),
        ({"users": [], "oauth": {**oauth, "expiration_minutes": 0}}, r"oauth\.expiration_minutes"),
    ):
        (tmp_path / "users.json").write_text(json.dumps(wrong))
        with pytest.raises(SourceNotFoundError, match=rf"users file cannot be used.*{named}"):
            load_users(tmp_path / "users.json")


def test_the_server_imports_nothing_heavy_and_listens_on_loopback_only(local_hub):
    loaded = printed_by("import sys, localhub.server; print(*(m.partition('.')[0] for m in sys.modules))").split()
    heavy = {"torch", "gradio", "transformers", "huggingface_hub", "datasets", "numpy", "httpx", "cryptography"}
    assert not heavy & {*loaded}
    listening = [c.laddr.ip for c in psutil.Process(local_hub.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_only_loopback_names_are_answered(local_hub):
    for host in ("127.0.0.1:80", "localhost", "[::1]:8000"):
        assert whole(local_hub, "GET", "/api/models", Host=host).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "["):
        assert whole(local_hub, "GET", "/api/models", Host=host).status == 421


def test_no_request_reads_files_outside_the_data_folder(local_hub, ada, repo):
    for path in ("../hub.sqlite3", "..%2Fhub.sqlite3", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "a%00b"):
        for prefix in (f"/{repo}/resolve/main/", f"/api/models/{repo}/tree/main/", f"/{repo}/resolve/"):
            assert whole(local_hub, "GET", prefix + path).status in (404, 405)
    for name in ("..%2F..%2Fx", "unknown"):
        assert whole(local_hub, "PUT", f"/lfs-uploads/1/{name}", b"x").status == 404


def test_a_kill_during_an_upload_leaves_the_old_head(tmp_path):
    content = os.urandom(1 << 20) * 8
    digest = hashlib.sha256(content).hexdigest()
    with LocalHubProcess(tmp_path / "data") as hub:
        ada = api_of(hub)
        repo = ada.create_repo("ada/half").repo_id
        head = ada.upload_file(path_or_fileobj=b"old", path_in_repo="w.bin", repo_id=repo).oid
        target = urlsplit(batch(ada, repo, digest, len(content))["actions"]["upload"]["href"])
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
        connection.putrequest("PUT", target.path)
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders()
        connection.send(content[: len(content) // 2])
        temporary = tmp_path / "data" / "tmp"
        while not any(path.stat().st_size for path in temporary.iterdir()):
            time.sleep(0.01)  # the first half is under way
        hub.kill()
        connection.close()
        hub.start()
        ada = api_of(hub)
        assert ada.model_info(repo).sha == head
        path = ada.hf_hub_download(repo, "w.bin", cache_dir=tmp_path / "cache")
        assert Path(path).read_bytes() == b"old"
        assert list(temporary.iterdir()) == []
        oid = ada.upload_file(path_or_fileobj=content, path_in_repo="w.bin", repo_id=repo).oid
        assert ada.model_info(repo).sha == oid


def test_one_folder_serves_one_hub_at_a_time(tmp_path, capfd):
    with LocalHubProcess(tmp_path / "data"), pytest.raises(HubUnavailableError):
        LocalHubProcess(tmp_path / "data").start()
    assert "another local Hub uses this data folder" in capfd.readouterr().err
    with LocalHubProcess(tmp_path / "data") as hub:
        assert api_of(hub).whoami()["name"] == "ada"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/repos/create", b'{"name": 7}'),
        ("POST", "/api/settings/webhooks", b'{"url": "http://127.0.0.1:1/", "watched": [{"type": "x", "name": "y"}]}'),
        *(("GET", f"/api/models?{query}", b"") for query in ("limit=-1", f"limit={'9' * 22}", "sort=nonsense")),
        ("PATCH", "/api/models", b""),
        ("GET", "/%ff%fe", b""),
    ],
)
def test_a_malformed_request_is_refused_and_breaks_nothing(local_hub, ada, repo, method, path, body):
    bearer = f"Bearer {ada.token}"
    answer = whole(local_hub, method, path, body, Authorization=bearer)
    assert 400 <= answer.status < 500
    assert ada.model_info(repo).id == repo
