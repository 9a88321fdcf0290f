"""Renders chat templates as an evaluation does, each with its time and its memory; run by test_evaluation_templates.

python template_bombs.py < {"name": "template", …}
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.templates import check_template, rendered

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(ZOO / "base")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = {}
    for name, template in json.load(sys.stdin).items():
        tokenizer.chat_template = template
        began = time.monotonic()
        try:
            check_template(tokenizer)
            said = ""
        except EvaluationError as error:
            said = str(error)
        answers[name] = {"said": said, "seconds": time.monotonic() - began}
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}{{ strftime_now('%d %b %Y') }}"
    )
    conversations = [[{"role": "user", "content": f"{n} \u00fc \U0001f600"}] for n in range(300)]
    texts = rendered(lambda messages: tokenizer.apply_chat_template(messages, tokenize=False), conversations)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    forks = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before
    print(json.dumps({"answers": answers, "texts": texts, "grown_bytes": 1024 * max(own, forks)}))


if __name__ == "__main__":
    main()
