"""Watchers: a rule, a look at the Hub, a merge job.

    rule.py        what an owner writes            facts.py    what was read of a model, at a commit
    webhook.py     deliveries → inbox.py           engine.py   the pure decision: merge this set, or why not
    runner.py      one turn of a rule              ledger.py   what was merged, refused, skipped; budgets
    board.py       the same for the pages          command.py  `hubmerge watch`
    kinds/         one file per kind of watcher; agents.py merges every new agent of a base

A delivery is only a hint that something may have changed; a poll gives the same hint without one. What a turn
decides rests on what it reads from the Hub itself.
"""
