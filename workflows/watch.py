"""`hubmerge watch RULE.yaml …`: rules from the command line, with a worker beside them.

--dry-run   one look; prints what would be merged and what is left out, and changes nothing
--once      one turn; queues what is due and returns, so that a worker or `serve` can do it
(neither)   polls until it is interrupted, and runs the jobs
"""

import argparse
import json
import logging
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hubmerge.cli.options import whole
from hubmerge.errors import HubUnavailableError, RuleError, printable
from hubmerge.machine.resources import require_linux
from hubmerge.settings import Settings

if TYPE_CHECKING:
    from hubmerge.cli.terminal import Terminal
    from workflows.bot import Bot
    from workflows.watchers.rule import RuleHead
    from workflows.watchers.runner import Turn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", metavar="RULE.yaml", type=Path, nargs="+")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="one turn: queue the merges that are due, then end")
    how.add_argument("--dry-run", action="store_true", help="one look: print the decision and change nothing")
    words = "seconds between polls; default: 300"
    parser.add_argument("--every", type=whole(1, 86_400), default=300, metavar="S", help=words)


def run_cli(arguments: Any, settings: Settings, terminal: "Terminal") -> int:
    """Exit code 0, or 1 where a rule's turn was not possible."""
    require_linux("the bot")
    # imported here, since every command builds this one's parser
    from workflows.bot import Bot, Intervals
    from workflows.jobs.store import DATABASE
    from workflows.jobs.tokens import KEY_FILE, TokenVault
    from workflows.serve import recorded_scores
    from workflows.watchers.rules import RuleSet, load_rule

    rules = tuple(load_rule(path) for path in arguments.rules)
    if len({rule.name for rule in rules}) != len(rules):
        raise RuleError("two rules have one name", next_step="Rename one.")
    with ExitStack() as stack:
        if arguments.dry_run and not (settings.data_dir / DATABASE).exists():  # nor is anything of the rule known
            nothing = Path(stack.enter_context(TemporaryDirectory(prefix="hubmerge-")))
            with suppress(FileNotFoundError):  # whose scores are believed hangs on it
                shutil.copy(settings.data_dir / KEY_FILE, nothing)
            settings = settings.model_copy(update={"data_dir": nothing})
        vault = TokenVault.from_settings(settings)
        scores = recorded_scores(settings)
        bot = Bot(settings, vault, lambda: RuleSet(rules), scores=scores, intervals=Intervals(poll_s=arguments.every))
        stack.callback(bot.store.close)
        if not (arguments.once or arguments.dry_run):
            return _watch(bot, rules, settings)
        terminal.stage("watch")
        stack.callback(terminal.close)
        turns = [bot.watchers.turn(rule, dry_run=arguments.dry_run) for rule in rules]
    for turn in turns:
        told = _document(turn, arguments.dry_run)
        print(json.dumps(told) if arguments.json else _text(told))  # noqa: T201 - the command's output
    return int(any(turn.error is not None for turn in turns))


def _watch(bot: "Bot", rules: "tuple[RuleHead, ...]", settings: Settings) -> int:
    from workflows.jobs.process import set_up_logging, told_to_stop
    from workflows.serve import WorkerProcess

    set_up_logging()
    stop = told_to_stop()
    with ExitStack() as stack:
        with suppress(HubUnavailableError):  # which is waited for
            for rule in rules:
                bot.account.require(rule.owner)
        stack.enter_context(bot.scheduler)
        stack.enter_context(WorkerProcess(settings, stop=stop))
        logging.getLogger(__name__).info("watching by %s", ", ".join(rule.name for rule in rules))
        stop.wait()
    return 0


def _document(turn: "Turn", dry_run: bool) -> dict[str, Any]:
    planned = turn.decision.merge
    return {
        "rule": turn.rule,
        "dry_run": dry_run,
        "merge": {"target": planned.target, "recipe": dict(planned.recipe)} if planned else None,
        "job": turn.job.id if turn.job else None,
        "waiting": turn.decision.waiting,
        "skipped": [{"model": s.subject, "sha": s.sha, "code": s.code, "why": s.text} for s in turn.decision.skips],
        "error": turn.error.as_dict() if turn.error else None,
    }


def _text(told: dict[str, Any]) -> str:
    lines = []
    if told["error"]:
        lines.append(f"{told['rule']}: {told['error']['message']}")
    elif told["merge"]:
        did = "would merge" if told["dry_run"] else "merges" if told["job"] else "is merging already"
        agents = ", ".join(map(str, told["merge"]["recipe"]["agents"]))
        lines.append(f"{told['rule']} {did} {agents} to {told['merge']['target']}")
        lines += [f"  job {told['job']}"] * bool(told["job"])
    else:
        lines.append(f"{told['rule']}: {told['waiting'] or 'nothing new'}")
    for s in told["skipped"]:
        model = f"{s['model']}@{s['sha'][:12]}".rstrip("@")  # of one that cannot be read no commit is known
        lines.append(f"  left out {model}: {s['code']}: {s['why']}")
    told_lines = "\n".join(lines).split("\n")  # an error may have several
    return "\n".join(map(printable, told_lines))  # a reason may quote a stranger's file
