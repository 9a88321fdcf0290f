"""What pyproject.toml cannot say: the examples, which stand beside the package here, lie inside it in a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithExamples(build_py):
    """The package, and the examples' data, recipes and rules as hubmerge/examples."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            code = shutil.ignore_patterns("__pycache__", "*.py")
            shutil.copytree("examples", Path(self.build_lib, "hubmerge", "examples"), ignore=code, dirs_exist_ok=True)


setup(cmdclass={"build_py": WithExamples})
