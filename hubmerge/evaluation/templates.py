"""Renders prompts by chat templates, which are strangers' programs, in a process with limits on memory and time.

    prompts = rendered(manager.prepare_prompt, docs)

Jinja's sandbox keeps a template from other objects, not from endless work: `"x" * 10**10` and `10**10**8` are one step
each, during which no signal handler of Python's runs. So a fork of the evaluating process renders the prompts. It has
the tokenizer at hand, may allocate MEMORY_BYTES beyond its start, and is killed where a prompt takes longer than
PROMPT_S. Its output is limited too. If a template fails, the model cannot be evaluated: EvaluationError. If the machine
may be to blame, because it killed the process or did not let it run in time, the error is another one.
"""

import importlib
import json
import math
import multiprocessing
import os
import re
import signal
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from hubmerge.errors import EvaluationError, MemoryLimitError
from hubmerge.isolation.confinement import Limits, die_with_parent, limit_resources
from hubmerge.isolation.in_child import WallLimitError, first_line

Item = TypeVar("Item")
DAY = datetime(2024, 7, 26)  # for templates that tell the model the day: the one that Llama's take where they know none

PROMPT_S = 4.0  # for one prompt; real templates take milliseconds
PROCESSOR_S = 30.0  # for all prompts of a task, and PROCESSOR_S_EACH for each of them
PROCESSOR_S_EACH = 0.1
MEMORY_BYTES = 512 * 1024 * 1024  # beyond what the process had before
MAX_PROMPT_CHARACTERS = 4_000_000  # a million tokens
MAX_RENDERED_BYTES = 512 * 1024 * 1024  # of all prompts of a task, as JSON
_MESSAGE_BYTES = 12 * MAX_PROMPT_CHARACTERS + 1000  # JSON escapes a character by at most twelve
_REMEDY = "Mend the model's chat template, or evaluate it without one."
_TOO_LONG = "the chat template makes too long prompts"
# made beforehand, since nothing can be made when it is needed
_NO_MEMORY = json.dumps(
    {"failed": ("the chat template needs too much memory", f"at most {MEMORY_BYTES} bytes", "more")}
).encode()


def check_template(tokenizer: Any) -> None:
    """EvaluationError where a question cannot be rendered, or the prompt lacks it; nothing without a chat template."""
    if getattr(tokenizer, "chat_template", None) is None:
        return
    question = "What is two plus two?"
    render = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    [text] = rendered(render, [[{"role": "user", "content": question}]])
    if question not in text:  # templates of models that see images take a text for a list of parts, and skip each of it
        raise _failed("the chat template leaves out the question", question, ascii(text[-200:])[1:-1])


def rendered(render: Callable[[Item], str], items: Sequence[Item]) -> list[str]:
    """`render` of every item, in their order; EvaluationError where one fails or takes too much.

    WallLimitError and MemoryLimitError where the machine may have ended it.
    """
    if not items:
        return []
    forking = multiprocessing.get_context("fork")
    reading, writing = forking.Pipe(duplex=False)
    child = forking.Process(target=_render_all, args=(render, items, writing, os.getpid()))
    with warnings.catch_warnings():
        # of threads at a fork; what runs in it is Python alone, and takes no lock of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    writing.close()
    try:
        return _collected(reading, child, len(items))
    finally:
        reading.close()
        child.kill()
        child.join()


def _render_all(render: Callable[[Item], str], items: Sequence[Item], writing: Connection, parent: int) -> None:
    """In the fork: send one message of JSON for each prompt, or one with the reason for none."""
    die_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    processor_s = math.ceil(PROCESSOR_S + PROCESSOR_S_EACH * len(items))
    limit_resources(Limits(cpu_s=processor_s, data_bytes=_data_bytes() + MEMORY_BYTES, file_bytes=0))
    library: Any = importlib.import_module("transformers.utils.chat_template_utils")
    library.datetime = SimpleNamespace(now=lambda: DAY)
    for item in items:
        try:
            data = json.dumps(_one(render, item)).encode()
        except MemoryError:
            data = _NO_MEMORY
        writing.send_bytes(data)


def _one(render: Callable[[Item], str], item: Item) -> dict[str, Any]:
    """The text, or in its place the arguments of `_failed`."""
    try:
        text = render(item)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's program: whatever it raises is its failure
        return {"failed": ("the chat template fails", "a prompt", f"{type(error).__name__}: {first_line(error)}")}
    if len(text) > MAX_PROMPT_CHARACTERS:
        return {"failed": (_TOO_LONG, f"at most {MAX_PROMPT_CHARACTERS} characters", str(len(text)))}
    return {"text": text}


def _data_bytes() -> int:
    """The bytes that count against RLIMIT_DATA now."""
    found = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError("the kernel does not say how much memory this process has")
    return int(found[1]) * 1024


def _collected(reading: Connection, child: ForkProcess, count: int) -> list[str]:
    """The texts from the fork, each within the time and length of one prompt."""
    texts: list[str] = []
    total = 0
    while len(texts) < count:
        if not reading.poll(PROMPT_S):
            raise WallLimitError(
                "the chat template does not come to an end",
                expected=f"at most {PROMPT_S:g} s for a prompt",
                got="more",
                next_step=_REMEDY,
            )
        try:
            data = reading.recv_bytes(_MESSAGE_BYTES)
        except EOFError:
            child.join()
            if child.exitcode == -signal.SIGKILL:
                what = "the process that renders the chat template was killed"
                raise MemoryLimitError(what, got="SIGKILL") from None
            raise _failed(
                "the process that renders the chat template died",
                f"at most {MEMORY_BYTES} bytes of memory and {PROCESSOR_S:g} s of processor time",
                f"its end after {len(texts)} of {count} prompts",
            ) from None
        except OSError:
            raise _failed(_TOO_LONG, f"at most {_MESSAGE_BYTES} bytes", "more") from None
        total += len(data)
        said = json.loads(data)
        if "failed" in said:
            raise _failed(*said["failed"])
        if total > MAX_RENDERED_BYTES:
            raise _failed(_TOO_LONG, f"at most {MAX_RENDERED_BYTES} bytes", str(total))
        texts.append(said["text"])
    return texts


def _failed(what: str, expected: str, got: str) -> EvaluationError:
    return EvaluationError(what, expected=expected, got=got, next_step=_REMEDY)
