"""Gives a direction by the compiled backend, and fails if it is not the known answer: a test of an installed wheel."""

from cyber0.directions import DirectionKey, sample

KNOWN = 3204912627  # of docs/stream.md

found = int(sample(DirectionKey(0x0123456789ABCDEF, 3, 2, 1), 1, backend="cpu").view("uint32")[0])
if found != KNOWN:
    raise SystemExit(f"{found} is not the known answer {KNOWN}")
