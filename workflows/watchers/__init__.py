"""Watchers: a rule, a look at the Hub, a merge job.

    rule.py, rules.py   what an owner writes, and the files that hold it
    webhook.py          deliveries → inbox
    runner.py           one turn of a rule: look → record why models are left out → start the merge that is due
    kinds/              one file per kind: what to read of the Hub, and which set to merge or why not
    facts.py            what was read of a model, at a commit, and whether it fits its base
    ledger.py           what was merged, refused, skipped; budgets

A delivery is only a hint that something may have changed; a poll looks without a hint. A turn decides only from what it
reads from the Hub itself.
"""
