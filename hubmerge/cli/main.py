"""The command line: `python -m hubmerge COMMAND …`, also installed as `hubmerge`.

Exit codes: 0 done, 1 refused, failed or interrupted with the reasons on stderr, 2 wrong usage, 143 ended by SIGTERM.
With `--log-json` progress goes to stderr as JSON lines. Imports stay inside the commands: `methods` or `localhub` must
not pay for what they do not use.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hubmerge import __version__, extras
from hubmerge.cli.flags import add_stream_options, add_visibility, port
from hubmerge.cli.terminal import Terminal
from hubmerge.errors import CancelledError, DiskError, HubmergeError, InternalError, MemoryLimitError
from hubmerge.settings import Settings, load_settings
from hubmerge.wording import did_you_mean

_END_AFTER_S = 5.0  # after Ctrl-C or SIGTERM
_TERMINATED = 128 + signal.SIGTERM  # as a shell has it
_LICENSE = "license of the result, where the parents leave it open; publishing needs one"
_JSON = "the result as one JSON object on standard output (docs/command_line.md), an error as one on stderr"
_NO_THREAD = "can't start new thread"  # what Python says, in a RuntimeError
_REPEATED = "; the same command goes on"


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, after which a command clears up as after Ctrl-C."""


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run one command; returns the exit code. `own_process`: nothing else runs in this process."""
    arguments = _parser().parse_args(argv)
    ends_soon = own_process and arguments.again is not None
    if ends_soon:
        _end_soon_when([signal.SIGINT], arguments)
    try:
        settings = load_settings()
        # one of several processes hears nothing while it waits for the others: SIGTERM ends it at once
        if ends_soon and not (settings.world_size > 1 and arguments.command in (_merge, _run)):
            _end_soon_when([signal.SIGINT, signal.SIGTERM], arguments)
        code = int(arguments.command(arguments, settings))
        sys.stdout.flush()
        return code
    except HubmergeError as error:
        failure = error
    except KeyboardInterrupt as interrupt:
        _tell_interrupted(arguments)
        return _TERMINATED if isinstance(interrupt, _TerminatedError) else 1
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
    if getattr(arguments, "log_json", False) or getattr(arguments, "json", False):
        print(json.dumps({"type": "error", **failure.as_dict()}), file=sys.stderr)
    else:
        print(f"hubmerge: {words}", file=sys.stderr)


def _tell_interrupted(arguments: Any, left: str = "") -> None:
    words = f"interrupted{arguments.again or ''}{left}"
    _tell(arguments, CancelledError(words), words)


def _of_system(error: MemoryError | OSError) -> HubmergeError:
    """The error for a refusal of the machine that no other code handles."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return MemoryLimitError("not enough memory", next_step="Use fewer --threads, or a larger machine.")
    if error.errno is None:
        return InternalError("the machine refuses", got=str(error))
    return DiskError("a file cannot be used", where=str(error.filename or ""), got=error.strerror or str(error))


def _end_soon_when(numbers: Sequence[signal.Signals], arguments: Any) -> None:
    """End the process soon after Ctrl-C, even if a thread waits for the network; a merge may end anywhere."""

    def leave(code: int) -> None:
        _tell_interrupted(arguments, " (what waited for the network was left)")
        sys.stderr.flush()
        os._exit(code)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # again, it would cut off what is being cleared up
        terminated = number == signal.SIGTERM
        timer = threading.Timer(_END_AFTER_S, leave, [_TERMINATED if terminated else 1])
        timer.daemon = True
        timer.start()
        raise _TerminatedError if terminated else KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


class _Parser(argparse.ArgumentParser):
    """argparse's parser, which also guesses the meaning of a misspelled command or option."""

    _typed: Sequence[str] = ()

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            message = f"unrecognized arguments: {' '.join(unknown)}"
            if hasattr(known, "recipe") and not any(text.startswith("-") for text in unknown):
                message += ". Several models are a recipe: `hubmerge init BASE AGENT… --out recipe.yaml` writes one"
            getattr(known, "parser", self).error(message)
        return known

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._typed = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        commands = [name for a in self._actions if isinstance(a, argparse._SubParsersAction) for name in a.choices]
        options = [name for name in self._option_string_actions if name.startswith("--")]
        unknown = [text.partition("=")[0] for text in self._typed if text.startswith("--")]
        typed = [text for text in unknown if text not in options] + (list(self._typed[:1]) if commands else [])
        guesses = [did_you_mean(text, options if text.startswith("--") else commands) for text in typed]
        super().error(". ".join([message, *filter(None, guesses)][:2]))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hubmerge", description="Merge RL-trained agents.")
    parser.add_argument("--version", action="version", version=f"hubmerge {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[Any, Settings], int], help: str, again: str | None = None
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(command=run, again=again, parser=command)
        command.add_argument("--log-json", action="store_true", help="progress and errors as JSON lines on stderr")
        return command

    from hubmerge.cli import init as recipe_init

    recipe_init.add_arguments(add("init", _init, "write a commented recipe of a base and its agents", ""))

    inspect = add("inspect", _inspect, "check a recipe from headers alone: compatibility, sizes, predictions", "")
    inspect.add_argument("recipe", type=Path)
    inspect.add_argument("--json", action="store_true")

    probe = add("probe", _probe, "the statistics of a recipe's agents: density, overlap, conflicts", "")
    probe.add_argument("recipe", type=Path)
    probe.add_argument("--json", action="store_true")
    add_stream_options(probe)

    diff = add("diff", _diff, "what one training changed: a model beside the one that it was trained from", "")
    from hubmerge.cli import diff as diff_command

    diff_command.add_arguments(diff)
    add_stream_options(diff)

    merge = add("merge", _merge, "merge to a folder: shards, config, tokenizer, card, hubmerge.json", _REPEATED)
    merge.add_argument("recipe", type=Path)
    output = merge.add_mutually_exclusive_group(required=True)
    output.add_argument("--out", type=Path, help="the folder")
    words = "count and hash the output, keep nothing of it, print the report: a measurement without the disk"
    output.add_argument("--null-sink", action="store_true", help=words)
    merge.add_argument("--resume", action="store_true", help="go on in an unfinished folder, as is done without it")
    merge.add_argument("--license", help=_LICENSE)
    merge.add_argument("--json", action="store_true", help=_JSON)
    add_stream_options(merge)

    publish = add("publish", _publish, "publish a finished folder to a repo on the Hub, in one commit", _REPEATED)
    publish.add_argument("folder", type=Path)
    publish.add_argument("repo")
    add_visibility(publish)
    publish.add_argument("--license", help="of a merge whose parents leave it open, and whose card names none yet")
    publish.add_argument("--json", action="store_true", help=_JSON)

    run = add("run", _run, "the whole line: check, merge, publish; run again to go on after a kill", _REPEATED)
    from hubmerge.cli import run as run_command

    run_command.add_arguments(run)
    run.add_argument("--json", action="store_true", help=_JSON)
    add_stream_options(run)

    sweep = add("sweep", _sweep, "several methods or a grid of parameters in one go, inputs read once", _REPEATED)
    sweep.add_argument("sweep", type=Path)
    sweep.add_argument("--out", type=Path, required=True, help="a folder per variant, and the table of variants")
    sweep.add_argument("--resume", action="store_true", help="go on in an unfinished folder, as is done without it")
    sweep.add_argument("--to", metavar="REPO", help="publish every variant as REPO-<variant>")
    add_visibility(sweep)
    sweep.add_argument("--license", help=_LICENSE)
    sweep.add_argument("--json", action="store_true", help=_JSON)
    add_stream_options(sweep)

    from hubmerge.cli.sensitivity import add_arguments

    add_arguments(add("sensitivity", _sensitivity, "the diagonal Fisher of an agent on calibration pairs"))

    from hubmerge.cli import evaluate as evaluation_command
    from hubmerge.cli import suites
    from hubmerge.cli.leaderboard import add_arguments as add_leaderboard_arguments

    evaluation_command.add_arguments(add("evaluate", _evaluate, "measure a model with a suite of tasks"))
    suites.add_arguments(add("suites", suites.run_cli, "the suites of tasks, and what their datasets are pinned to"))
    add_leaderboard_arguments(add("leaderboard", _leaderboard, "the table of merges and what they kept"))

    watch = add("watch", _watch, "merge new agents as they appear on the Hub, by rules")
    from workflows.watch import add_arguments as add_watch_arguments

    add_watch_arguments(watch)
    from workflows import jobs_command, sign_command

    words = "the app's jobs of HF_TOKEN's user, and another try for failed ones"
    jobs_command.add_arguments(add("jobs", jobs_command.run_cli, words))
    words = "sign the flags and equal versions of a results dataset, as its keeper"
    sign_command.add_arguments(add("sign", lambda a, s: sign_command.run_cli(a, s, _hub(s)), words))
    methods = add("methods", _methods, "the merge methods, their papers and parameters")
    methods.add_argument("--json", action="store_true")

    localhub = add("localhub", _localhub, "an embedded Hub on loopback")
    localhub.add_argument("--port", type=port, default=0, help="0 takes a free one")
    localhub.add_argument("--data", type=Path, required=True)
    localhub.add_argument("--zoo", action="store_true", help="seed it with the example agents and benchmark data")
    localhub.add_argument("--faults", action="store_true", help="with the route that switches faults on, for tests")

    for name, handler, help in (
        ("serve", _serve, "the app with its worker, on the Hub of HF_ENDPOINT"),
        ("demo", _demo, "the app on an embedded Hub seeded with the example agents; no account, no network"),
    ):
        command = add(name, handler, help)
        command.add_argument("--host", default="127.0.0.1")
        command.add_argument("--port", type=port, default=7860)
        if name == "demo":
            command.add_argument("--watch", action="store_true", help="also let the example watcher merge")
    return parser


def _in_terminal(module: str, name: str = "run_cli", *, one_object: bool = False) -> Callable[[Any, Settings], int]:
    """A command that reports to a terminal; `module` is imported when it runs.

    `one_object`: with --json its result is one object, and where it fails, standard output stays empty.
    """

    def run(arguments: Any, settings: Settings) -> int:
        with Terminal(arguments.log_json, one_object=one_object and arguments.json) as terminal:
            code = int(getattr(import_module(module), name)(arguments, settings, terminal))
            terminal.print_result()
        return code

    return run


_init = _in_terminal("hubmerge.cli.init")
_inspect = _in_terminal("hubmerge.cli.inspect")
_probe = _in_terminal("hubmerge.cli.probe")
_diff = _in_terminal("hubmerge.cli.diff")
_merge = _in_terminal("hubmerge.cli.merge", "run_merge", one_object=True)
_sweep = _in_terminal("hubmerge.cli.merge", "run_sweep", one_object=True)
_run = _in_terminal("hubmerge.cli.run", one_object=True)
_sensitivity = _in_terminal("hubmerge.cli.sensitivity")
_evaluate = _in_terminal("hubmerge.cli.evaluate")
_leaderboard = _in_terminal("hubmerge.cli.leaderboard")
_watch = _in_terminal("workflows.watch")


def _hub(settings: Settings) -> Any:
    from hubmerge.hub.login import hub_of_user

    return hub_of_user(settings)


def _publish(arguments: Any, settings: Settings) -> int:
    from hubmerge.library import publish

    with Terminal(arguments.log_json, one_object=arguments.json) as terminal:
        published = publish(
            arguments.folder,
            arguments.repo,
            private=arguments.private,
            public=arguments.public,
            license=arguments.license,
            hub=_hub(settings),
            observer=terminal,
        )
        terminal.say(f"{published.url} at {published.commit}\n", **asdict(published))
        terminal.print_result()
    return 0


def _methods(arguments: Any, settings: Settings) -> int:
    from hubmerge.methods import registry

    if arguments.json:
        table = {
            m.name: {
                "title": m.title,
                "summary": m.summary,
                "formula": m.formula,
                "papers": [{"title": p.title, "arxiv": p.arxiv, "equations": p.equations} for p in m.papers],
                "needs_statistics": m.overlap_scope(m.parse_parameters({})) is not None,
                "parameters": m.parameters.model_json_schema(by_alias=True).get("properties", {}),
            }
            for m in registry().values()
        }
        print(json.dumps(table, indent=2, ensure_ascii=False))
        return 0
    for method in registry().values():
        print(f"{method.name:<18} {method.title}: {method.summary}")
        print(f"{'':<18} {method.formula}")
        for field_name, field in method.parameters.model_fields.items():
            print(f"{'':<18}   {field.alias or field_name} = {field.default}: {field.description}")
        for paper in method.papers:
            print(f"{'':<18} {paper.title}, arXiv:{paper.arxiv}, {paper.equations}")
    return 0


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
