"""What pyproject.toml cannot say: the fast pass in C, which is optional, and the examples and docs, which stand beside
the package here and lie inside it in a wheel."""

import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError


class WithExamples(build_py):
    """The package, the examples' data, recipes and rules as hubmerge/examples, and the pages that the app shows."""

    def run(self) -> None:
        if not self.editable_mode:  # a module that is gone lies there from an earlier build, and a method would merge
            for package in ("hubmerge", "localhub", "workflows"):
                shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            code = shutil.ignore_patterns("__pycache__", "*.py")
            shutil.copytree("examples", Path(self.build_lib, "hubmerge", "examples"), ignore=code, dirs_exist_ok=True)
            docs = Path(self.build_lib, "hubmerge", "docs")
            docs.mkdir(parents=True, exist_ok=True)
            for name in ("api.md", "glossary.md"):
                shutil.copy(Path("docs", name), docs)


class FastPass(build_ext):
    """pass.c as hubmerge/engine/build.py builds it, for every kind of machine in one library."""

    def build_extension(self, ext: Extension) -> None:
        build = runpy.run_path("hubmerge/engine/build.py")
        compiler = build["find_compiler"]()
        if compiler is None:
            raise CompileError("there is no C compiler, so merges will take some sixty times as long")
        try:
            build["build"](compiler, Path(self.get_ext_fullpath(ext.name)))
        except OSError as error:
            raise CompileError(str(error)) from None


setup(
    cmdclass={"build_py": WithExamples, "build_ext": FastPass},
    ext_modules=[Extension("hubmerge.engine._pass", ["hubmerge/engine/pass.c"], optional=True)],
)
