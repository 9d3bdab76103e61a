"""Builds the compiled stream for aarch64 and runs it under qemu-user: it must give the known answers, bit for bit.

    apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    python scripts/try_aarch64.py

The flags are those of setup.py. `--cc` and `--run` name another compiler, and what runs its programs.
"""

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cyber0.directions import sample
from cyber0.directions.key import DirectionKey, Family, pack

ROOT = Path(__file__).parents[1]
STREAM = ROOT / "src" / "cyber0" / "directions" / "_stream.c"
KEY = DirectionKey(seed=0x0123456789ABCDEF, round=3, epoch=2, index=1)
DRIVER = """
#include "_stream.c"
#include <stdio.h>
#include <stdlib.h>
/* Reads what to do, directions and weights; writes what came of it. */
int main(void)
{
    int64_t ask[5]; /* bytes of a weight, 0 to fill; size; start; directions; commits to replay, 0 for one by itself */
    if (fread(ask, 8, 5, stdin) != 5) return 1;
    int64_t width = ask[0], size = ask[1], start = ask[2], count = ask[3], commits = ask[4];
    direction *d = malloc(count * sizeof(direction));
    char *out = malloc(size * 4);
    if (fread(d, sizeof(direction), count, stdin) != (size_t)count) return 1;
    if (width == 0) cyber0_fill((float *)out, size, start, d);
    else if (fread(out, width, size, stdin) != (size_t)size) return 1;
    else if (commits) cyber0_fold(out, width == 2, size, start, d, commits, count / commits);
    else cyber0_descend(out, width == 2, out, width == 2, size, start, d, count);
    return fwrite(out, width ? width : 4, size, stdout) != (size_t)size;
}
"""


def main() -> None:
    """Build, run and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cc", default="aarch64-linux-gnu-gcc")
    parser.add_argument("--run", default="qemu-aarch64 -L /usr/aarch64-linux-gnu")
    given = parser.parse_args()
    flags = re.findall(r'"(-[^"]+)"', (ROOT / "setup.py").read_text(encoding="utf-8").partition("]")[0])
    with tempfile.TemporaryDirectory() as folder:
        driver, program = Path(folder) / "driver.c", Path(folder) / "stream"
        driver.write_text(DRIVER, encoding="utf-8")
        built = [*shlex.split(given.cc), *flags, f"-I{STREAM.parent}", str(driver), "-o", str(program), "-lm"]
        subprocess.run(built, check=True)
        wrong = compare([*shlex.split(given.run), str(program)])
    print(f"{given.cc}: {'all known answers, bit for bit' if not wrong else 'WRONG: ' + ', '.join(wrong)}")
    sys.exit(bool(wrong))


def compare(command: list[str]) -> list[str]:
    """Return which known answers the program does not give."""
    known = json.loads((ROOT / "tests" / "known_answers.json").read_text(encoding="utf-8"))
    gaussian, signs = (pack([KEY], family, [1.0], [1.0]) for family in ("gaussian", "rademacher"))
    far = _ask(command, 0, 8, 2**34 + 12345, gaussian).view("<u4").tolist()
    checks = {
        "gaussian": _digest(_ask(command, 0, 2**20, 0, gaussian)) == known["gaussian_2**20_sha256"],
        "gaussian, far out": far == known["gaussian_start_2**34+12345_first8_bits"],
        "rademacher": _digest(_ask(command, 0, 2**20, 0, signs)) == known["rademacher_2**20_sha256"],
        "apply to float32": _digest(_applied(command, 4)) == known["apply"]["float32_sha256"],
        "apply to bf16": _digest(_applied(command, 2)) == known["apply"]["bf16_as_float32_sha256"],
        "replay to float32": _digest(_replayed(command, 4)) == known["apply"]["float32_sha256"],
        "replay to bf16": _digest(_replayed(command, 2)) == known["apply"]["bf16_as_float32_sha256"],
        "replay of signs": all(_signs_agree(command, width) for width in (2, 4)),
    }
    return [name for name, right in checks.items() if not right]


def _begun(width: int) -> Any:
    """Return the weights that the known answer `apply` begins with."""
    weights: Any = sample(DirectionKey(seed=5, round=0), 4096, backend="numpy") * np.float32(0.05)
    return (weights.view(np.uint32) >> 16).astype("<u2") if width == 2 else weights


def _commits(family: Family = "gaussian") -> list[Any]:
    """Return its three commits."""
    keys = [[DirectionKey(99, number, epoch, r) for epoch in range(2) for r in range(2)] for number in range(3)]
    return [pack(each, family, [1.0] * 4, 1e-3 * np.array([0.5, -1.25, 2.0, 0.75])) for each in keys]


def _applied(command: list[str], width: int, family: Family = "gaussian") -> Any:
    """Return the weights after three rounds, one after the other, as float32."""
    weights = _begun(width)
    for steps in _commits(family):
        weights = _ask(command, width, len(weights), 0, steps, weights).view(weights.dtype)
    return _widened(weights)


def _replayed(command: list[str], width: int, family: Family = "gaussian") -> Any:
    """Return the same, by one pass over the weights."""
    weights, steps = _begun(width), np.concatenate(_commits(family))
    return _widened(_ask(command, width, len(weights), 0, steps, weights, commits=3).view(weights.dtype))


def _signs_agree(command: list[str], width: int) -> bool:
    one_by_one = _applied(command, width, "rademacher")
    return one_by_one.tobytes() == _replayed(command, width, "rademacher").tobytes()


def _widened(weights: Any) -> Any:
    return (weights.astype(np.uint32) << 16).view(np.float32) if weights.itemsize == 2 else weights


def _ask(
    command: list[str], width: int, size: int, start: int, packed: Any, weights: Any = None, commits: int = 0
) -> Any:
    ask = np.array([width, size, start, len(packed), commits], dtype="<i8").tobytes() + packed.tobytes()
    ask += b"" if weights is None else weights.tobytes()
    return np.frombuffer(subprocess.run(command, input=ask, capture_output=True, check=True).stdout, dtype="<f4")


def _digest(array: Any) -> str:
    return hashlib.sha256(np.asarray(array, dtype="<f4").tobytes()).hexdigest()


if __name__ == "__main__":
    main()
