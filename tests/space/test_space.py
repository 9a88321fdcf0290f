"""The repository as a Space: its front matter, its upload, and the app as uid 1000 from a tree with what a Space has.

That is for a Gradio Space the files that git tracks and nothing installed, and for a Docker Space what the Dockerfile
copies, which that user cannot change.
"""

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from huggingface_hub import SpaceHardware
from processes import as_ada, free_port, python, until

from localhub.process import LocalHubProcess
from localhub.users import default_users
from workflows.jobs.store import DATABASE

ROOT = Path(__file__).resolve().parents[2]


def tracked_files() -> list[str]:
    """Paths below ROOT, those about to be added among them; skips where there is no git or no checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def copy_to(tree: Path, files: Mapping[str, str]) -> None:
    """Files of this repository into a tree, each from where it comes and with its modes."""
    for to, source in files.items():
        (tree / to).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, tree / to)


README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.match(r"---\n(.*?)\n---\n", README, re.DOTALL)
assert _BLOCK, "no YAML block at the top"
SPACE = yaml.safe_load(_BLOCK[1])

# from the Hub's configuration reference of Spaces
_KEYS = (
    "title emoji colorFrom colorTo sdk python_version sdk_version suggested_hardware suggested_storage app_file "
    "app_build_command app_port base_path fullWidth header short_description models datasets tags thumbnail pinned "
    "hf_oauth hf_oauth_expiration_minutes hf_oauth_scopes hf_oauth_authorized_org disable_embedding "
    "startup_duration_timeout custom_headers preload_from_hub license license_name license_link"
)
KEYS = frozenset(_KEYS.split())
COLOURS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_SCOPES = (
    "openid profile email read-billing read-repos gated-repos contribute-repos write-repos manage-repos "
    "read-collections write-collections inference-api jobs webhooks write-discussions read-memberships"
)
SCOPES = frozenset(_SCOPES.split())
# ZeroGPU, August 2026: the Gradio SDK alone
ZERO_GPU_PYTHONS = ("3.12.12", "3.10.13")
ZERO_GPU_TORCHES = ("2.8.0", "2.9.1", "2.10.0", "2.11.0")


def _pin(package: str) -> str:
    found = re.search(rf"^{package}(?:\[.*\])?==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_the_hub_takes_the_front_matter():
    assert SPACE.keys() <= KEYS
    assert SPACE["title"]
    assert len(SPACE["emoji"]) == 1
    assert {SPACE["colorFrom"], SPACE["colorTo"]} <= set(COLOURS)
    assert 0 < len(SPACE["short_description"]) <= 60
    assert SPACE.get("suggested_hardware") in (None, *(each.value for each in SpaceHardware))
    assert re.fullmatch(r"[1-9]\d*[smh]", SPACE.get("startup_duration_timeout", "1h"))
    assert {SPACE.get("pinned", False), SPACE["hf_oauth"]} <= {True, False}
    assert set(SPACE["hf_oauth_scopes"]) <= SCOPES
    assert 0 < SPACE["hf_oauth_expiration_minutes"] <= 43_200


def test_a_sign_in_of_the_demo_lasts_as_long_as_one_of_the_space():
    assert default_users().oauth.expiration_minutes == SPACE["hf_oauth_expiration_minutes"]


def test_a_gradio_space_runs_the_gradio_that_is_pinned():
    assert SPACE["sdk"] == "gradio"
    assert SPACE["sdk_version"] == _pin("gradio")
    assert (ROOT / SPACE["app_file"]).is_file()


def test_zero_gpu_has_the_python_and_the_torch_of_the_space():
    assert SPACE["python_version"] in ZERO_GPU_PYTHONS
    assert _pin("torch") in ZERO_GPU_TORCHES


MAX_PLAIN_BYTES = 10 * 1024**2  # of a file that is not stored by Git LFS or Xet


def _is_binary(path: Path) -> bool:
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return b"\0" in content


def test_no_file_is_larger_than_the_hub_takes_in_git():
    assert [path for path in tracked_files() if (ROOT / path).stat().st_size > MAX_PLAIN_BYTES] == []


def test_the_upload_that_the_readme_names_makes_a_space_of_the_tracked_files_with_no_binary_in_git(
    local_hub, ada, tmp_path
):
    paths, tree = tracked_files(), tmp_path / "clone"
    copy_to(tree, dict(zip(paths, paths, strict=True)))
    for junk in (".venv/lib/module.py", "data/hubmerge.sqlite", "out/model.safetensors"):
        (tree / junk).parent.mkdir(parents=True)
        (tree / junk).write_bytes(b"not for the Space")
    [command] = re.findall(r"^hf (upload .*)$", README, re.MULTILINE)
    hf = ["huggingface_hub.cli.hf", *shlex.split(re.sub(r"\bme/", "ada/", command.split("#")[0]))]
    done = python("-m", *hf, folder=tree, HF_HOME=str(tmp_path / "home"), **as_ada(local_hub, tmp_path))
    assert done.returncode == 0, done.stderr

    space = ada.space_info("ada/hubmerge", files_metadata=True)
    assert space.sdk == "gradio"
    assert space.siblings
    uploaded = {sibling.rfilename: sibling for sibling in space.siblings}
    assert set(uploaded) - {".gitattributes"} == set(paths)
    assert all(uploaded[path].size == (ROOT / path).stat().st_size for path in paths)
    assert [path for path in paths if _is_binary(ROOT / path) and uploaded[path].lfs is None] == []
    assert len(ada.list_repo_commits("ada/hubmerge", repo_type="space")) == 2  # the empty Space's, and one


UID = 1000
DOCKERFILE = ROOT / "Dockerfile"
START_S = 180.0


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def _ignored(path: str) -> bool:
    """What .dockerignore says of a path: the last pattern that matches it or a folder of it decides."""
    parts = path.split("/")
    candidates = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        patterns = {pattern, pattern.replace("**/", "")}
        if any(fnmatch.fnmatchcase(c, p) and c.count("/") >= p.count("/") for c in candidates for p in patterns):
            ignored = not line.startswith("!")
    return ignored


def _copied() -> dict[str, str]:
    """Where a file of the image comes from, by its path below /app."""
    paths = [path for path in tracked_files() if not _ignored(path)]
    found = {}
    for word, rest in _instructions():
        if word != "COPY":
            continue
        *sources, to = [part for part in rest.split() if not part.startswith("--")]
        for source in sources:
            taken = [path for path in paths if path == source or path.startswith(f"{source}/")]
            assert taken, f"COPY {source}: there is no such file, or .dockerignore leaves it out"
            for path in taken:
                below = path.removeprefix(source).lstrip("/")
                parts = (to.removeprefix("./").rstrip("/"), below or Path(source).name)
                found["/".join(filter(None, parts))] = path
    return found


@dataclass(frozen=True)
class Place:
    """A tree in a folder that everybody may enter, and a home for its user."""

    tree: Path
    home: Path

    def run(self, command: list[str], **variables: str) -> subprocess.Popen[str]:
        """Start it in the tree as uid 1000, which may read the interpreter's files wherever they lie, and no more."""
        as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"]
        reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "PYTHONNOUSERSITE": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            **variables,
        }
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [*as_user, *reads, *command]
        return subprocess.Popen(command, cwd=self.tree, env=environment, start_new_session=True, **said)

    def belongs_to_user(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID)


@pytest.fixture
def place() -> Iterator[Place]:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become uid 1000, by setpriv")
    folder = Path(tempfile.mkdtemp(prefix="hubmerge-space-"))
    try:
        folder.chmod(0o755)
        made = Place(folder / "app", folder / "home")
        made.tree.mkdir()
        made.home.mkdir()
        made.belongs_to_user(made.home)
        yield made
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def image(place: Place) -> Place:
    """What the Dockerfile copies, owned by root."""
    copy_to(place.tree, _copied())
    return place


def _get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _serves(place: Place, hub: LocalHubProcess, data: str, look: list[str]) -> None:
    """Start app.py, wait for /config, and look at what should not be served; then end it."""
    # the platform's port is one for everybody; here it may be taken
    port = free_port()
    patched = (place.tree / "app.py").read_text(encoding="utf-8").replace("7860", str(port))
    (place.tree / "app.py").write_text(patched, encoding="utf-8")
    variables = {
        "HF_ENDPOINT": hub.endpoint,
        "HUBMERGE_SECRET": "a long random string that only this test knows",
        "OAUTH_CLIENT_ID": hub.oauth["client_id"],
        "OAUTH_CLIENT_SECRET": hub.oauth["client_secret"],
        **({"HUBMERGE_DATA": data} if data else {}),
    }
    app = place.run([sys.executable, "app.py"], **variables)

    def answer() -> tuple[int, bytes] | None:
        assert app.poll() is None, app.communicate()[0]
        with suppress(OSError):
            return _get(f"http://127.0.0.1:{port}/config")
        return None

    def worker() -> psutil.Process | None:
        """The worker process, once it has the database open."""
        for child in psutil.Process(app.pid).children():
            with suppress(psutil.Error):
                if "workflows.jobs.worker" in child.cmdline() and any(DATABASE in f.path for f in child.open_files()):
                    return child
        return None

    try:
        status, body = until(answer, "the app does not answer", START_S)
        assert status == 200
        assert json.loads(body)["version"].startswith("6.")
        works = until(worker, "no worker opened the job database", START_S)
        assert works.uids().effective == UID
        assert Path(works.cwd()) == place.tree
        for path in look:
            assert _get(f"http://127.0.0.1:{port}/gradio_api/file={path}")[0] in (403, 404), path
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/gradio_api/heartbeat/a-visitor", timeout=10)
    finally:
        os.killpg(app.pid, signal.SIGTERM)  # the workers' too, which may end before the app has closed them
        said = app.communicate(timeout=60)[0]
    page.close()  # it was open until now, as a visitor's is
    assert "Traceback" not in said, said
    assert "is started again" not in said, said
    assert app.returncode == 0


def test_the_image_holds_what_runs_and_no_tests():
    copied = _copied()
    code = {"app.py", "hubmerge/cli/main.py", "localhub/server.py", "workflows/jobs/worker.py"}
    assert code | {"examples/zoo/base/model.safetensors"} <= copied.keys()
    docs = {path for path in copied if path.startswith("docs/")}
    assert docs == {"docs/api.md", "docs/glossary.md"}  # the app's page
    roots = {path.split("/")[0] for path in copied}
    assert roots.isdisjoint({"tests", "benchmarks", ".ci", ".git", "data"})
    assert sum((ROOT / source).stat().st_size for source in copied.values()) < 10_000_000


def test_the_image_runs_as_uid_1000_on_the_python_of_the_space():
    instructions = _instructions()
    assert dict(instructions)["FROM"].startswith("python:3.12-")
    users = [number for number, (word, rest) in enumerate(instructions) if (word, rest) == ("USER", "1000")]
    assert any("--uid 1000 user" in rest for word, rest in instructions[: users[0]] if word == "RUN")
    assert ("CMD", '["python", "app.py"]') in instructions[users[0] :]
    # torch asks for the user's name, which `docker run --user` leaves out
    assert any("USER=user" in rest.split() for word, rest in instructions if word == "ENV")


@pytest.mark.slow
def test_the_app_of_a_gradio_space_starts_from_a_clone_that_its_user_owns(place, local_hub):
    copy_to(place.tree, {path: path for path in tracked_files()})
    place.belongs_to_user(place.tree)
    _serves(place, local_hub, "", ["app.py", "requirements.txt", f"data/{DATABASE}", str(place.home)])
    assert (place.tree / "data" / DATABASE).is_file()  # the default of HUBMERGE_DATA


@pytest.mark.slow
def test_the_app_of_a_docker_space_starts_from_what_its_user_cannot_change(image, local_hub):
    data = image.home / "data"
    _serves(image, local_hub, str(data), [str(data), "/etc/passwd"])
    assert (data / DATABASE).is_file()
    assert not list(image.tree.rglob("__pycache__"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_merge_in_the_image_builds_the_fast_pass_where_nothing_was_installed(image):
    def run(command: list[str]) -> str:
        step = image.run(command)
        said = step.communicate(timeout=500)[0]
        assert step.returncode == 0, said
        return said

    asked = "import hubmerge, hubmerge.engine.compiled as compiled; print(hubmerge.__file__, compiled.is_built())"
    instructions = _instructions()
    [step] = [rest for word, rest in instructions[instructions.index(("USER", "1000")) :] if word == "RUN"]
    merge, clear = [shlex.split(each) for each in step.split("&&")]
    assert (merge[:2], merge[3], clear) == (["hubmerge", "merge"], "--out", ["rm", "-r", merge[4]])

    where, before = run([sys.executable, "-c", asked]).split()
    run([sys.executable, "-m", *merge[:4], str(image.home / "merged")])
    _, after = run([sys.executable, "-c", asked]).split()
    assert where.startswith(str(image.tree))
    assert (before, after) == ("False", "True")
    assert list((image.home / ".cache" / "hubmerge").iterdir())
