"""A process in which no package of an extra can be imported, as where the core alone is installed.

python without_extras.py COMMAND …
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hubmerge.machine.extras import MODULES

ABSENT = {name for names in MODULES.values() for name in names} | {"pandas", "peft", "tokenizers", "scipy", "sklearn"}


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Absent())
_find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in ABSENT else _find_spec(name, *rest)

if __name__ == "__main__":
    from hubmerge.__main__ import console

    code = console()
    assert not ABSENT & {name.partition(".")[0] for name in sys.modules}
    sys.exit(code)
