"""Builds what is released, the source distribution and a wheel of it, and tries both as a user would install them.

The wheel is installed and must give a known direction by its compiled backend; the source distribution is installed
where the C compiler always fails, and must give the same, slower. `python scripts/try_release.py [FOLDER]` keeps the
files in a folder. Dependencies are those of this interpreter: nothing is downloaded.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = 3204912627  # the first of the known answers, in docs/stream.md
NEEDED = ("py.typed", "study/report.html.j2", "study/recipes/table1.toml", "network/live.html", "protocol/wire.proto")
PROGRAM = """
import sys, cyber0, cyber0.cli.commands
from cyber0.directions import DirectionKey, sample
from cyber0.study.recipe import get_recipe
assert cyber0.__file__.startswith(sys.argv[1]), cyber0.__file__
get_recipe("table1")
bits = sample(DirectionKey(0x0123456789ABCDEF, 3, 2, 1), 1, backend=sys.argv[2]).view("uint32")
print(cyber0.__version__, int(bits[0]))
"""


def main() -> None:
    """Build, install, try."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "dist"
        folder.mkdir(parents=True, exist_ok=True)
        source = build_source(Path(scratch) / "tree", folder)
        pip("wheel", "--wheel-dir", str(folder), str(source))
        wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
        names = zipfile.ZipFile(wheel).namelist()
        missing = [name for name in NEEDED if f"cyber0/{name}" not in names]
        if missing or not any("_stream" in name and not name.endswith(".c") for name in names):
            sys.exit(f"{wheel.name} lacks {', '.join(missing) or 'the compiled stream'}")
        try_install(wheel, Path(scratch) / "compiled", "cpu")
        try_install(source, Path(scratch) / "plain", "numpy", CC="/bin/false")
    print(f"{source.name} and {wheel.name} install and give the known answer, the first without a compiler, too")


def build_source(tree: Path, folder: Path) -> Path:
    """Return the source distribution of what is committed."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder.resolve())!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=True)
    return folder / done.stdout.split()[-1]


def try_install(package: Path, target: Path, backend: str, **environment: str) -> None:
    """Install a package into a folder of its own, and let it give a known direction."""
    pip("install", "--target", str(target), str(package), **environment)
    env = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-c", PROGRAM, str(target), backend]
    found = subprocess.run(command, cwd=target, env=env, capture_output=True, text=True, check=True).stdout.split()
    if int(found[-1]) != KNOWN:
        sys.exit(f"{package.name}: {found[-1]} is not the known answer {KNOWN}")


def pip(command: str, *arguments: str, **environment: str) -> None:
    """Run pip without a network."""
    quiet = ("-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    run = [sys.executable, "-m", "pip", command, *quiet, *arguments]
    subprocess.run(run, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    main()
