"""The parts of a wheel that lie elsewhere: the library's sources, and reprokit of images/common.

A source distribution has a copy of reprokit, and the licence, beside this file.
"""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.sdist import sdist

REPROKIT = "reprokit" if Path("reprokit").is_dir() else "../common/src/reprokit"


class SourceDistribution(sdist):
    """As ever, with what lies outside of this folder inside."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and reprokit and the licence; the tests need the repository."""
        elsewhere = ("..", "tests", "reprokit")
        super().make_release_tree(base_dir, [one for one in files if not one.startswith(elsewhere)])
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPROKIT, Path(base_dir, "reprokit"), ignore=ignored)
        shutil.copy("LICENSE" if Path("LICENSE").is_file() else "../../LICENSE", base_dir)


setup(
    packages=[*find_namespace_packages("src"), "accel_trace.native", "reprokit"],
    package_dir={"": "src", "accel_trace.native": "native", "reprokit": REPROKIT},
    cmdclass={"sdist": SourceDistribution},
)
