"""The command line: `python -m hubmerge COMMAND …`, also installed as `hubmerge`.

Exit codes: 0 done, 1 refused, failed or interrupted with the reasons on stderr, 2 wrong usage, 143 ended by SIGTERM,
129 by SIGHUP.
With `--log-json` progress goes to stderr as JSON lines. Imports stay inside the commands: `methods` or `localhub` must
not pay for what they do not use.
"""

import argparse
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any

from hubmerge import __version__
from hubmerge.cli import options
from hubmerge.cli.options import YAML_FILE, add_stream_options, add_visibility, path, port
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import CancelledError, DiskError, HubmergeError, InternalError, MemoryLimitError
from hubmerge.machine import extras
from hubmerge.machine.disk_errors import remedy
from hubmerge.settings import Settings, load_settings

_END_AFTER_S = 5.0  # after Ctrl-C or SIGTERM
_LICENSE = "the license of the result, where the parents leave it open; publishing needs one"
_JSON = "the result as one JSON object on standard output (docs/command_line.md), an error as one on stderr"
_RESUME = "go on in an unfinished folder, as the command does without it, too"
_NO_THREAD = "can't start new thread"  # what Python says, in a RuntimeError
_REPEATED = "; the same command goes on"


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, or SIGHUP of a terminal that was closed, after which a command clears up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number  # as a shell has it


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run one command; returns the exit code. `own_process`: nothing else runs in this process."""
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        given, hint = list(sys.argv[1:] if argv is None else argv), ""
        if unknown[0] in given[: given.index(arguments.command)]:
            hint = f". Options stand behind the command: hubmerge {arguments.command} {unknown[0]}"
        elif hasattr(arguments, "recipe") and not any(text.startswith("-") for text in unknown):
            hint = ". Several models are a recipe: `hubmerge init BASE AGENT… --out recipe.yaml` writes one"
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    ends_soon = own_process and arguments.again is not None
    if ends_soon:
        _end_soon_when([signal.SIGINT], arguments)
    try:
        settings = load_settings()
        # one of several processes hears nothing while it waits for the others: SIGTERM ends it at once
        if ends_soon and not (settings.world_size > 1 and arguments.command in ("merge", "run")):
            _end_soon_when([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], arguments)
        code = int(arguments.run(arguments, settings))
        sys.stdout.flush()
        return code
    except HubmergeError as error:
        failure = error
    except KeyboardInterrupt as interrupt:
        _tell_interrupted(arguments)
        return interrupt.code if isinstance(interrupt, _TerminatedError) else 1
    except ModuleNotFoundError as error:
        missing = extras.explained(error)
        if missing is None:
            raise
        failure = missing
    except BrokenPipeError:  # the reader of the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return 1
    except (MemoryError, OSError) as error:
        failure = _of_system(error)
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        failure = MemoryLimitError(
            "no further thread can be started",
            next_step="Use fewer --threads, or raise the limits on memory and processes (ulimit -v, ulimit -u).",
        )
    _tell(arguments, failure, str(failure))
    return 1


def _tell(arguments: Any, failure: HubmergeError, words: str) -> None:
    as_json = getattr(arguments, "log_json", False) or getattr(arguments, "json", False)
    told = json.dumps({"type": "error", **failure.as_dict()}) if as_json else f"hubmerge: {words}"
    with suppress(OSError):  # the terminal may be closed
        print(told, file=sys.stderr)


def _tell_interrupted(arguments: Any, left: str = "") -> None:
    words = f"interrupted{arguments.again or ''}{left}"
    _tell(arguments, CancelledError(words), words)


def _of_system(error: MemoryError | OSError) -> HubmergeError:
    """The error for a refusal of the machine that no other code handles."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return MemoryLimitError("not enough memory", next_step="Use fewer --threads, or a larger machine.")
    if error.errno is None:
        return InternalError("the machine refuses", got=str(error))
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return DiskError("the working folder was removed", next_step="Change to a folder that is there.")
    got, step = error.strerror or str(error), remedy(error)
    return DiskError("a file cannot be used", where=str(error.filename or ""), got=got, next_step=step)


def _end_soon_when(numbers: Sequence[signal.Signals], arguments: Any) -> None:
    """End the process soon after a signal, even if a thread waits for the network; a merge may end anywhere."""

    def leave(code: int) -> None:
        _tell_interrupted(arguments, " (what waited for the network was left)")
        os._exit(code)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # again, it would cut off what is being cleared up
        ended = KeyboardInterrupt() if number == signal.SIGINT else _TerminatedError(number)
        timer = threading.Timer(_END_AFTER_S, leave, [getattr(ended, "code", 1)])
        timer.daemon = True
        timer.start()
        raise ended

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup, or a script's shell in its background
            signal.signal(number, interrupt)


def _parser() -> argparse.ArgumentParser:
    words = "Merge RL-trained agents. `hubmerge init BASE AGENT… --out my.yaml` writes a first recipe."
    parser = argparse.ArgumentParser(prog="hubmerge", description=words, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"hubmerge {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str,
        run: str | Callable[[Any, Settings], int],
        help: str,
        again: str | None = None,
        *,
        function: str = "run_cli",
        json: str = _JSON,
    ) -> argparse.ArgumentParser:
        """`run`: a function, or the module whose `function` reports to a terminal, and which is imported when it runs.

        `json`: the help of --json; empty where the command has none, or adds its own.
        """
        # a script that abbreviates an option would break when another one is added
        command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        called = _in_terminal(run, function) if isinstance(run, str) else run
        command.set_defaults(run=called, command=name, again=again, parser=command)
        command.add_argument("--log-json", action="store_true", help="progress and errors as JSON lines on stderr")
        if json:
            command.add_argument("--json", action="store_true", help=json)
        return command

    from workflows import jobs_command, sign_command, watch

    words = "write a commented recipe of a base and its agents"
    options.of_init(add("init", "hubmerge.cli.init", words, "", json=""))

    words = "check a recipe or a sweep from headers alone: compatibility, sizes, predictions"
    add("inspect", "hubmerge.cli.inspect", words, "").add_argument("recipe", type=path, help=YAML_FILE)

    words = "the statistics of a recipe's agents: density, overlap, conflicts"
    command = add("probe", "hubmerge.cli.probe", words, "")
    command.add_argument("recipe", type=path, help=YAML_FILE)
    add_stream_options(command)

    words = "what one training changed: a model beside the one that it was trained from"
    options.of_diff(add("diff", "hubmerge.cli.diff", words, ""))

    words = "merge to a folder: shards, config, tokenizer, card, hubmerge.json"
    command = add("merge", "hubmerge.cli.merge", words, _REPEATED, function="run_merge")
    command.add_argument("recipe", type=path, help=YAML_FILE)
    output = command.add_mutually_exclusive_group(required=True)
    output.add_argument("--out", type=path, help="the folder")
    words = "count and hash the output, keep nothing of it, print the report: a measurement without the disk"
    output.add_argument("--null-sink", action="store_true", help=words)
    command.add_argument("--resume", action="store_true", help=_RESUME)
    command.add_argument("--license", help=_LICENSE)
    add_stream_options(command)

    words = "publish a finished folder to a repo on the Hub, in one commit"
    command = add("publish", "hubmerge.cli.publish", words, _REPEATED)
    command.add_argument("folder", type=path, help="a folder that `hubmerge merge` has finished")
    command.add_argument("repo", help="owner/name on the Hub; it is made where it does not exist")
    add_visibility(command)
    command.add_argument("--license", help="the license, where the parents leave it open and the card names none yet")

    words = "the whole line: check, merge, publish; run again to go on after a kill"
    options.of_run(add("run", "hubmerge.cli.run", words, _REPEATED))

    words = "several methods or a grid of parameters in one go, inputs read once"
    command = add("sweep", "hubmerge.cli.merge", words, _REPEATED, function="run_sweep")
    command.add_argument("sweep", type=path, help=YAML_FILE)
    command.add_argument("--out", type=path, required=True, help="a folder per variant, and the table of variants")
    command.add_argument("--resume", action="store_true", help=_RESUME)
    command.add_argument("--to", metavar="REPO", help="publish every variant as REPO-<variant>")
    add_visibility(command)
    command.add_argument("--license", help=_LICENSE)
    add_stream_options(command)

    words = "the diagonal Fisher of an agent on calibration pairs"
    options.of_sensitivity(add("sensitivity", "hubmerge.cli.sensitivity", words, _REPEATED))
    words = "measure a model with a suite of tasks"
    options.of_evaluate(add("evaluate", "hubmerge.cli.evaluate", words, _REPEATED))
    words = "the suites of tasks, and what their datasets are pinned to"
    options.of_suites(add("suites", "hubmerge.cli.suites", words))
    words = "the table of merges and what they kept"
    options.of_leaderboard(add("leaderboard", "hubmerge.cli.leaderboard", words, json=""))
    words = "merge new agents as they appear on the Hub, by rules"
    watch.add_arguments(add("watch", "workflows.watch", words, json="decisions as JSON lines"))
    words = "the app's jobs of HF_TOKEN's user, and another try for failed ones"
    jobs_command.add_arguments(add("jobs", jobs_command.run_cli, words))
    words = "sign the flags of a results dataset, as its keeper"
    sign_command.add_arguments(add("sign", _sign, words))
    add("methods", "hubmerge.cli.methods", "the merge methods, their papers and parameters")

    command = add("localhub", _localhub, "an embedded Hub on loopback", json="")
    command.add_argument("--port", type=port, default=0, help="default: a free one")
    command.add_argument("--data", type=path, required=True, help="the folder that holds everything")
    command.add_argument("--zoo", action="store_true", help="seed it with the example agents and benchmark data")
    command.add_argument("--faults", action="store_true", help="with the route that switches faults on, for tests")

    serve = add("serve", _serve, "the app with its worker, on the Hub of HF_ENDPOINT", json="")
    words = "the app on an embedded Hub seeded with the example agents; no account, no network"
    demo = add("demo", _demo, words, json="")
    for command in (serve, demo):
        command.add_argument("--host", default="127.0.0.1", help="the address to listen on; default: this machine's")
        command.add_argument("--port", type=port, default=7860, help="default: 7860")
    demo.add_argument("--watch", action="store_true", help="also let the example watcher merge")
    return parser


def _in_terminal(module: str, function: str) -> Callable[[Any, Settings], int]:
    def run(arguments: Any, settings: Settings) -> int:
        with Terminal(arguments.log_json, one_object=getattr(arguments, "json", False)) as terminal:
            code = int(getattr(import_module(module), function)(arguments, settings, terminal))
            terminal.print_result()
        return code

    return run


def _sign(arguments: Any, settings: Settings) -> int:
    from hubmerge.hub.login import hub_of_user
    from workflows import sign_command

    return int(sign_command.run_cli(arguments, settings, hub_of_user(settings)))


def _localhub(arguments: Any, settings: Settings) -> int:
    from localhub.server import serve

    serve(arguments.port, arguments.data, zoo=arguments.zoo, with_faults=arguments.faults)
    return 0


def _serve(arguments: Any, settings: Settings) -> int:
    from workflows.serve import serve

    return int(serve(settings, host=arguments.host, port=arguments.port))


def _demo(arguments: Any, settings: Settings) -> int:
    from workflows.demo import demo

    return int(demo(settings, host=arguments.host, port=arguments.port, watch=arguments.watch))
