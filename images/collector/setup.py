"""The parts of a wheel that lie elsewhere: the library's sources, and reprokit of images/common."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages("src"), "accel_trace.native", "reprokit"],
    package_dir={
        "": "src", "accel_trace.native": "native", "reprokit": "../common/src/reprokit",
    },
)  # fmt: skip
