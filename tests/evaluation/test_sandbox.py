"""What generated code can do in the sandbox: come to its end, or fail."""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

import psutil
import pytest
from processes import ROOT, printed_by, until

from hubmerge.errors import DeviceError, MachineFaultError
from hubmerge.evaluation import sandbox
from hubmerge.evaluation.sandbox import run_python
from hubmerge.evaluation.sandbox_rules import landlock_abi


def raises(program: str, error: str) -> bool:
    """Whether the program ends with this error, its name and the beginning of its text."""
    caught = f"try: exec({program!r})\nexcept BaseException as error: said = f'{{type(error).__name__}}: {{error}}'"
    return run_python(caught, f"assert said.startswith({error!r}), said")


def test_a_solution_passes_its_tests_and_nothing_else_does():
    good = "def double(n):\n    return 2 * n\n"
    assert run_python(good, "assert abs(double(4) - 8) < 1e-6")
    assert not run_python(good, "assert double(4) == 9")
    assert not run_python("def double(n:", "pass")
    assert not run_python("raise KeyError('x')")
    assert not run_python("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E")


FORGED = {
    "an end": "import os; os._exit(0)",
    "an exit": "exit()",
    "an end at the exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)",
    "a thread": "import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()\nwhile True: pass",
    "an open quote": "tests = '''",
    "no pipe": "import os\nos.write = os.read = lambda *a: b''\nos.closerange(3, 4096)\nos._exit(0)",
    "exec does nothing": "import builtins\nbuiltins.exec = lambda *a, **k: None",
    "compile gives nothing": "import builtins\nbuiltins.compile = lambda *a, **k: real('', '', 'exec')\nreal = compile",
    "a verdict in every pipe": (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    for text in (b'passed', b'ready\\npassed', (2).to_bytes(4, 'big') + b'[]'):\n"
        "        try: os.write(fd, text)\n"
        "        except OSError: pass"
    ),
    "through the frames": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    for name, value in list(frame.f_locals.items()):\n"
        "        if isinstance(value, int) and 'fd' in name:\n"
        "            import os; os.write(value, b'passed')\n"
        "    frame = frame.f_back"
    ),
    "equal to everything": (
        "class Equal:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "answer = lambda: Equal()"
    ),
    "a number equal to everything": "class N(int):\n    __eq__ = lambda s, o: True\nanswer = lambda: N(1)",
    "a text equal to everything": "class T(str):\n    __eq__ = lambda s, o: True\nanswer = lambda: T('x')",
    "its own abs": "abs = lambda x: 0\nanswer = lambda: 7\nfabs = isclose = lambda *a: 0",
    "no assertion fails": "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet",
    "another answer for the channel": (
        "import json\njson.dumps = lambda *a, **k: '[\"value\", 42, 42]'\nanswer = lambda: 7"
    ),
    "the tests' process as its object": "class O:\n    def __reduce__(self): return (exit, (0,))\nanswer = lambda: O()",
    "a long answer": "answer = lambda: 'x' * (80 << 20)",
    "a deep answer": "x = []\nfor _ in range(10**5): x = [x]\nanswer = lambda: x",
    "an answer that holds itself": "x = []; x.append(x)\nanswer = lambda: x",
    "the end of everything": "answer = exit",
    "an end of the iteration": "def answer(): raise StopIteration",
}


@pytest.mark.parametrize("kind", FORGED)
def test_nothing_that_a_solution_does_to_python_passes_its_tests(kind):
    for tests in (
        "assert abs(answer() - 42) < 1e-6 if not isinstance(answer(), str) else answer() == '42'",
        "assert answer() == 42 or abs(answer() - 42) < 1e-6",
    ):
        assert run_python("answer = lambda: 42", tests)
        assert not run_python(FORGED[kind], tests)


def test_tests_see_the_solution_s_values_classes_iterators_and_exceptions():
    program = (
        "import math\nfrom collections import Counter, namedtuple, deque\nfrom decimal import Decimal\n"
        "from fractions import Fraction\n"
        "class Node:\n"
        "    def __init__(self, value, rest=None):\n        self.value, self.rest = value, rest\n"
        "    def __len__(self): return 1 + (len(self.rest) if self.rest else 0)\n"
        "    def __getitem__(self, i): return self.value if i == 0 else self.rest[i - 1]\n"
        "def total(node): return node.value + (total(node.rest) if node.rest else 0)\n"
        "def upto(n): yield from range(n)\n"
        "def fail(): raise ValueError('no')\n"
        "class Odd(Exception): pass\n"
        "def odd(): raise Odd('own')\n"
        "P = namedtuple('P', 'x y')\nLIMIT = 5\n"
        "def same(*a, **k): return (a, k)\n"
    )
    setup = "root = Node(1)\nroot.rest = Node(2)"
    tests = (
        "assert total(root) == 3 and total(Node(5)) == 5 and root.rest.value == 2\n"
        "root.value = 10\nassert total(root) == 12 and len(root) == 2 and root[1] == 2\n"
        "assert root == root and root != root.rest and bool(root)\n"
        "assert list(upto(3)) == [0, 1, 2] and sum(upto(4)) == 6 and next(upto(1)) == 0\n"
        "assert P(1, 2) == (1, 2) and LIMIT == 5 and math.isclose(math.pi, 3.14159, abs_tol=1e-4)\n"
        "for raised, says in ((fail, 'no'), (odd, 'own')):\n"
        "    try: raised()\n"
        "    except (ValueError if raised is fail else Exception) as error: assert str(error) == says\n"
        "    else: assert False\n"
        "values = [None, True, -1, 10**5000, 1.5, float('inf'), 2j, 'a\\ud800', b'x', (1, [2]), {3}, frozenset({4}),\n"
        "          {(1, 2): {'k': [None]}}, range(2, 9, 3), bytearray(b'y')]\n"
        "for value in values:\n"
        "    ((back,), named) = same(value, key=value)\n"
        "    assert type(back) is type(value) and back == value and named == {'key': value}, value\n"
        "nan, _ = same(float('nan'))\nassert nan[0] != nan[0]\n"
        "assert Counter('aab') == {'a': 2, 'b': 1} and Decimal('1.10') + Decimal('2') == Decimal('3.10')\n"
        "assert Fraction(1, 3) * 3 == 1 and deque([1, 2]) == deque([1, 2])\n"
        "try: undefined\n"
        "except NameError: pass\n"
        "else: assert False\n"
    )
    assert run_python((program, setup), tests)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os\nwhile True: os.fork()", "PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "PermissionError"),
        ("import os; os.system('true') == 0 or exit('no shell')", "SystemExit: no shell"),
        ("import os; os.execv('/bin/true', ['true'])", "PermissionError"),
        ("import multiprocessing as m; m.get_context('fork').Process(target=print).start()", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import socket; socket.socket(socket.AF_UNIX)", "PermissionError"),
        ("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'', '/x')", "PermissionError"),
        ("import socket; socket.socketpair()[0].bind('VICTIM.x')", "PermissionError"),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')", "URLError"),
        ("import os; os.kill(os.getppid(), 0)", "PermissionError"),
        ("import os; os.killpg(os.getpgrp(), 15)", "PermissionError"),
        ("import fcntl, os; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())", "PermissionError"),
        ("import fcntl, os; fcntl.fcntl(os.pipe()[0], 15, bytes([1, 0, 0, 0, 1, 0, 0, 0]))", "PermissionError"),
        ("import fcntl, os; fcntl.fcntl(os.open(os.__file__, 0), fcntl.F_SETLEASE, 1)", "PermissionError"),
        ("import fcntl, os; fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX)", "PermissionError"),
        ("import fcntl, os; fcntl.lockf(os.open(os.__file__, 0), fcntl.LOCK_SH)", "PermissionError"),
        ("import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 0)", "PermissionError"),
        ("import os; os.setuid(4711)", "PermissionError"),  # also as root, whose powers are given up
        ("import resource as r, os; r.prlimit(os.getppid(), r.RLIMIT_CPU)", "PermissionError"),
        ("open('here', 'w')", "OSError: [Errno 30]"),
        ("open('VICTIM', 'a')", "OSError: [Errno 30]"),
        ("import os; os.mkdir('here')", "OSError: [Errno 30]"),
        ("import os; os.unlink('VICTIM')", "OSError: [Errno 30]"),
        ("import os; os.rename('VICTIM', 'VICTIM.x')", "OSError: [Errno 30]"),
        ("import os; os.chmod('VICTIM', 0o777)", "OSError: [Errno 30]"),
        (
            "import os; os.fchmod(os.open(os.__file__, os.O_RDONLY), os.stat(os.__file__).st_mode)",
            "OSError: [Errno 30]",
        ),
        ("import os; os.utime('VICTIM')", "OSError: [Errno 30]"),
        ("import os; os.truncate('VICTIM', 0)", "OSError: [Errno 30]"),
        ("import os; os.memfd_create('x')", "PermissionError"),
        (
            "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"  # so that it could outlive its parent
            "libc.prctl(1, 0, 0, 0, 0) and exit(os.strerror(ctypes.get_errno()))",
            "SystemExit: Operation not permitted",
        ),
        (  # of another process, whose numbers can be tried
            "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "libc.shmat(0, None, 0) and exit(os.strerror(ctypes.get_errno()))",
            "SystemExit: Operation not permitted",
        ),
        ("x = bytearray(1 << 32)", "MemoryError"),
        ("import os; [os.dup(1) for _ in range(99)]", "OSError: [Errno 24]"),
        ("while True: print('x' * 99999)", "OSError: [Errno 27]"),
        ("import numpy", "ModuleNotFoundError"),
        ("import hubmerge", "ModuleNotFoundError"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
def test_harm_is_refused(program, says, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    before = victim.stat()
    assert raises(program.replace("VICTIM", str(victim)), says)
    assert victim.read_text() == "as it was"
    assert (victim.stat().st_mode, victim.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [victim]


@pytest.mark.parametrize(
    ("program", "timeout_s"),
    [
        ("while True: pass", 0.5),
        ("import signal; signal.pause()", 0.5),
        ("import os, time\nos.closerange(3, 4096)\ntime.sleep(600)", 250.0),
        ("import ctypes; ctypes.string_at(0)", 250.0),
        ("import os; os.kill(os.getpid(), 40)", 250.0),
    ],
)
def test_a_program_that_does_not_end_by_itself_is_ended(program, timeout_s):
    began = time.monotonic()
    assert not run_python(program, timeout_s=timeout_s)
    assert time.monotonic() - began < 200


def test_it_sees_an_empty_folder_and_no_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    program = (
        "import os, sys\nseen = [sorted(os.environ), sys.stdin.read(), sys.argv, __name__]\n"
        "packages, folder = [p for p in sys.path if 'site-packages' in p], os.getcwd()"
    )
    tests = (
        "assert seen == [['LC_ALL', 'MALLOC_ARENA_MAX', 'PYTHONHASHSEED'], '', ['solution.py'], 'solution'], seen\n"
        f"assert packages == [] and folder.startswith({tempfile.gettempdir()!r}), folder"
    )
    assert run_python(program, tests)


def test_a_python_that_finds_its_libraries_by_a_variable_starts(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntest "$LD_LIBRARY_PATH" = /opt/module || exit 127\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/module")
    assert run_python("import os", "assert 'LD_LIBRARY_PATH' not in os.environ")


@pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/{parent}/environ", __file__])
def test_it_reads_no_file_outside_of_the_library(path):
    assert raises(f"print(open({path.format(parent=os.getpid())!r}).read())", "PermissionError")


def test_the_standard_library_threads_and_asyncio_work():
    program = (
        "import asyncio, bisect, collections, dataclasses, datetime, decimal, fractions, functools, hashlib, heapq\n"
        "import itertools, json, math, operator, random, re, statistics, string, threading, typing, zoneinfo, secrets\n"
        "found = []\n"
        "thread = threading.Thread(target=found.append, args=(1,)); thread.start(); thread.join()\n"
        "async def two(): await asyncio.sleep(0); return 2\n"
        "found.append(asyncio.run(two()))\n"
        "@dataclasses.dataclass\nclass P:\n    x: 'typing.ClassVar[int]' = 1\n"
        "secrets.token_hex()\n"
    )
    assert run_python(program, "assert found == [1, 2]")


def test_the_order_of_a_set_is_the_same_in_every_run():
    program = "order = list({'a', 'b', 'c', 'd', 'e', 'f'})"
    told = printed_by(f"{program}; print(order)", PYTHONHASHSEED="0")
    assert run_python(program, f"assert order == {told}")


def test_a_value_larger_than_a_message_fails_the_tests():
    program = "def f(n): return 'x' * (n << 20)"
    assert run_python(program, "assert len(f(1)) == 1 << 20")
    assert not run_python(program, "f(64)", timeout_s=60)


def test_a_process_that_cannot_be_confined_gives_no_score(monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    broken.write_text("import sys; sys.exit('this machine cannot confine a process')")
    monkeypatch.setattr(sandbox, "_CHILD", broken)
    with pytest.raises(DeviceError, match="cannot confine"):
        run_python("pass")
    broken.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(sandbox, "_START_S", 0.1)
    with pytest.raises(MachineFaultError, match=r"nothing in 0.1 s"):
        run_python("pass")


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd"))
    for program in ("pass", "while True: pass", "import os; os._exit(3)"):
        run_python(program, timeout_s=0.3)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_both_processes_end_with_the_one_that_started_them():
    code = "from hubmerge.evaluation.sandbox import run_python\nrun_python('while True: pass', timeout_s=250)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        until(lambda: len(psutil.Process(parent.pid).children()) == 2)
        both = psutil.Process(parent.pid).children()
        parent.kill()

    def runs(process):
        with suppress(psutil.NoSuchProcess):
            return process.status() != psutil.STATUS_ZOMBIE
        return False

    until(lambda: not any(map(runs, both)))


def test_it_runs_inside_a_confined_process():
    code = (
        "from hubmerge.isolation.confinement import Limits, confine\n"
        "confine(Limits(cpu_s=60, open_files=99), network=False)\n"
        "from hubmerge.evaluation.sandbox import run_python\nprint(run_python('x = 1', 'assert x'))"
    )
    assert printed_by(code) == "True\n"
