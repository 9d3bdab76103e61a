"""What decides the meaning of a label, as digests that the parties of a run compare.

Two clients that number classes in another order, or ask for other label words, would train against each other without a
single error. So a task says what its labels mean, part by part; a digest depends neither on where files lie nor on a
client's own samples.
"""

import hashlib
import json
from typing import Any

__all__ = ["digest"]


def digest(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON: keys sorted, no spaces, UTF-8.

    >>> digest({"length": 128, "kind": "masked"}) == digest({"kind": "masked", "length": 128})
    True
    >>> digest(["bad", "good"]) == digest(["good", "bad"])
    False
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
