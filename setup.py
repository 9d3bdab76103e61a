"""Compiles the fast CPU paths where there is a C compiler; without one, the same weights are written, slower."""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

FLAGS = [
    *("-O3", "-std=c11", "-fvisibility=hidden"),
    "-ffp-contract=off",  # or multiply-adds fuse, and the bits are wrong
    *("-fno-math-errno", "-fno-trapping-math", "-fno-wrapv"),  # or loops do not vectorise
]
if platform.machine() in {"x86_64", "AMD64"}:
    FLAGS.append("-mprefer-vector-width=512")


def extension(name: str, *flags: str) -> Extension:
    """A shared library called through ctypes, built of the C file of the same name."""
    return Extension(
        name,
        [source := f"src/{name.replace('.', '/')}.c"],
        depends=sorted(map(str, Path(source).parent.glob("_*.h"))),
        extra_compile_args=["/O2", "/fp:strict"] if sys.platform == "win32" else [*FLAGS, *flags],
        libraries=[] if sys.platform == "win32" else ["m"],
        optional=True,
    )


setup(
    ext_modules=[
        extension("cyber0.directions._stream"),
        extension("cyber0.aggregation._rows"),
        extension("cyber0.layerwise._attention", "-ffp-contract=fast"),  # it measures, and writes no weights
    ]
)
