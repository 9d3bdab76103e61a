"""Turn SNLI's pairs of a sentence and one that follows from it into chats, to tune a causal model on.

    python scripts/snli_chats.py DATA/snli/snli_train_subset.jsonl.gz chats

writes chats/train.jsonl (2,400 chats) and chats/test.jsonl (200, about other sentences). SNLI (Bowman et al., 2015) is
licensed CC BY-SA 4.0, and so are the chats made of it.
"""

import argparse
import gzip
import json
from pathlib import Path

ASK = "Write one short sentence that must be true if this is true: "
ENTAILMENT, TRAIN, TEST = 0, 2400, 200


def chats(source: Path) -> list[str]:
    """Return a line for each sentence that has an entailment: a question with that sentence, and the answer."""
    found: dict[str, str] = {}
    with gzip.open(source, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row["label"] == ENTAILMENT:
                found.setdefault(row["premise"].strip(), row["hypothesis"].strip())
    return [json.dumps({"messages": _messages(ASK + premise, answer)}) for premise, answer in found.items()]


def _messages(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="SNLI's rows: .jsonl.gz with premise, hypothesis and label")
    parser.add_argument("out", type=Path, help="a folder")
    given = parser.parse_args()
    lines = chats(given.source)
    if len(lines) < TRAIN + TEST:
        parser.error(f"{given.source} has {len(lines)} sentences with an entailment: {TRAIN + TEST} are needed")
    given.out.mkdir(parents=True, exist_ok=True)
    for name, part in {"train": lines[:TRAIN], "test": lines[TRAIN : TRAIN + TEST]}.items():
        (given.out / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
        print(f"{len(part)} chats written to {given.out / name}.jsonl")


if __name__ == "__main__":
    main()
