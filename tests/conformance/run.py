"""Conformance: the client's own tests, unchanged but for their endpoint, against the local Hub.

    python tests/conformance/run.py [--cache DIR] [--select EXPRESSION]

Downloads the source archive of the installed huggingface_hub once, unpacks its tests, starts a local Hub with the
users that they expect, runs those that need neither the real Hub nor git-lfs, and prints a summary. Those of uploads
through Xet run apart, since the others run without its library. Exit code 0 means that every one of them ran and none
failed: that at least as many passed as a suite names, and at most as many did not run as the client skips itself.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from localhub.process import LocalHubProcess  # noqa: E402

STAGING = "https://hub-ci.huggingface.co"


class Suite(NamedTuple):
    """Tests that run in one environment; `passed` and `skipped` are those of huggingface_hub 2.4.0."""

    passed: int
    skipped: int
    tests: tuple[str, ...]
    markers: str
    names: str  # as pytest's -k takes them
    environment: dict[str, str]


PLAIN = Suite(
    passed=479,
    skipped=2,
    tests=(
        "test_hf_api.py",
        "test_hf_file_system.py",
        "test_snapshot_download.py",
        "test_file_download.py",
        "test_cli_discussions.py",
        "test_hub_mixin.py",
        "test_commit_scheduler.py",
        "test_commit_api.py",
        "test_lfs.py",
        "test_cache_layout.py",
        "test_repocard.py::TestMetadataUpdateOnMissingCard",
        "test_repocard.py::TestRepocardMetadataUpdate",
    ),
    markers="not production and not inference and not xet and not no_xet and not git_lfs",
    names=(
        "not TestCollectionAPI and not TestHfApiInferenceCatalog"
        " and not test_autocomplete_works_as_expected"  # of an editor, needs jedi
    ),
    environment={"HF_HUB_DISABLE_XET": "1"},
)
XET = Suite(
    passed=9,
    skipped=0,
    tests=("test_xet_upload.py",),
    markers="xet",
    names=(
        "not TestBucketXetUploadSkipSha256"
        # these two ask for downloads through Xet
        " and not TestXetE2E and not (TestXetUpload and test_upload_file and not with)"
    ),
    environment={},
)
# whom the client's tests sign in as; the tokens stand in its published source and open nothing
USERS = {
    "users": [
        {
            "name": "__DUMMY_HUB_USER__",
            "fullname": "Dummy User",
            "email": "dummy@example.org",
            "tokens": [{"value": "hf_HubCITokenXXXXXXXXXXXXXXXXXXXXX"}],
        },
        {"name": "DVUser", "tokens": [{"value": "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"}]},
        {"name": "EnterpriseAdmin", "tokens": [{"value": "hf_enterprise_admin_token"}]},
    ],
    "orgs": [
        {"name": "valid_org_hub", "fullname": "Dummy Hub Org", "members": {"__DUMMY_HUB_USER__": "admin"}},
        {"name": "EnterpriseOrgPrivate", "members": {"EnterpriseAdmin": "admin"}, "private_by_default": True},
    ],
    "oauth": {"client_id": "conformance", "client_secret": "conformance-secret"},
}


def fetch(cache: Path) -> Path:
    """The source archive of the installed client, downloaded on first use."""
    wanted = version("huggingface_hub")
    archive = cache / f"huggingface_hub-{wanted}.tar.gz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-binary", ":all:", "-d", str(cache), f"huggingface_hub=={wanted}"], check=True)
    return archive


def unpack(archive: Path, target: Path, endpoint: str) -> None:
    """The tests as a package, with their endpoint replaced and the files that the archive leaves out."""
    tests = target / "tests"
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inside = member.name.partition("/")[2]
            if inside.startswith("tests/") and member.isfile():
                source = tar.extractfile(member)
                assert source is not None
                path = target / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read().replace(STAGING.encode(), endpoint.encode()))
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text((HERE / "upstream_conftest.py").read_text())
    (target / "pytest.ini").write_text((HERE / "upstream_pytest.ini").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "conformance")
    parser.add_argument("--select", default="", help="run only tests that match this pytest -k expression")
    args = parser.parse_args()
    archive = fetch(args.cache)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "users.json").write_text(json.dumps(USERS))
        with LocalHubProcess(work / "data", users=work / "users.json") as hub:
            unpack(archive, work, hub.endpoint)
            plain = run(PLAIN, work, hub.endpoint, args.select)
            return plain if args.select else max(plain, run(XET, work, hub.endpoint))


def run(suite: Suite, work: Path, endpoint: str, selected: str = "") -> int:
    """Run the suite's tests in `work`, or those that are selected; 0 if all passed that should run."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(work / "hf"),
        "HF_TOKEN": "",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        **suite.environment,
    }
    report = work / "report.xml"
    report.unlink(missing_ok=True)
    names = f"{suite.names} and ({selected})" if selected else suite.names
    command = [sys.executable, "-m", "pytest", "-n2", "--timeout", "60", "--junitxml", report.name]
    command += [f"tests/{test}" for test in suite.tests] + ["-m", suite.markers, "-k", names]
    ended = subprocess.run(command, cwd=work, env=environment, check=False)
    return summarize(report, ended.returncode, None if selected else suite)


def summarize(report: Path, exit_code: int, whole: Suite | None) -> int:
    """Print the counts; 0 if all passed that should run, which are those of a whole suite or what was selected.

    `exit_code` is pytest's: it tells also of what no report has, a crash or a test that could not be collected.
    """
    if not report.exists():
        print(f"The tests did not run to their end: pytest's exit code is {exit_code}.")
        return 1
    suite = next(ElementTree.parse(report).iter("testsuite"))
    total, failures, errors, skipped = (int(suite.get(n, 0)) for n in ("tests", "failures", "errors", "skipped"))
    failed, passed = failures + errors, total - failures - errors - skipped
    print(f"huggingface_hub {version('huggingface_hub')}: {passed} passed, {failed} failed, {skipped} skipped")
    short = whole is not None and (passed < whole.passed or skipped > whole.skipped)
    if whole is not None and short:
        print(f"Expected at least {whole.passed} passed and at most {whole.skipped} skipped.")
    return int(failed > 0 or exit_code != 0 or short or not passed)


if __name__ == "__main__":
    sys.exit(main())
