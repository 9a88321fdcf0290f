"""Watchers: a rule, a look at the Hub, a merge job.

    rule.py        what an owner writes            facts.py    what was read of a model, at a commit
    rules.py       the files that hold it          engine.py   the pure decision: merge this set, or why not
    webhook.py     deliveries → inbox.py           ledger.py   what was merged, refused, skipped; budgets
    runner.py      one turn of a rule              kinds/      one file per kind of watcher

A delivery is only a hint that something may have changed; a poll looks without a hint. A turn decides only from what it
reads from the Hub itself.
"""
