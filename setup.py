"""Builds the fast CPU backend where there is a C compiler; an install without one works, slower."""

import platform
import sys

from setuptools import Extension, setup

FLAGS = [
    "-O3",
    "-std=c11",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-wrapv",
]
if platform.machine() in {"x86_64", "AMD64"}:
    FLAGS.append("-mprefer-vector-width=512")

setup(
    ext_modules=[
        Extension(
            "cyber0.directions._stream",
            ["src/cyber0/directions/_stream.c"],
            extra_compile_args=["/O2", "/fp:strict"] if sys.platform == "win32" else FLAGS,
            libraries=[] if sys.platform == "win32" else ["m"],
            optional=True,
        )
    ]
)
