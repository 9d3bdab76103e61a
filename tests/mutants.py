"""Mutants of messages and files: made of valid ones, so that most of them get past the first check."""

import json
import struct

BOUNDARIES = (0, 1, 2, 3, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
LENGTHS = (0, 1, 4, 31, 32, 33, 63, 64, 65, 96, 100, 5000)
DOUBLES = (float("nan"), float("inf"), float("-inf"), -0.0, 1e308, 5e-324, 2.0, -1.0)
FLOATS = (float("nan"), float("inf"), float("-inf"), 3.4e38, 1e-45, 0.0, -1.0)
TEXTS = ("", "\ud800", "\x1b[2J", "x" * 101, "client-0", "00" * 32, "0" * 63, "NaN", "ü", "é", "a b")
VALUES = (None, True, False, 0, -1, 1, 2**31, 2**32 - 1, 2**64, -(2**63), 10**400, 1e308, 0.5, [], {}, [[]], *TEXTS)


def mutant(rng, data, pool):
    """Bytes like those of a valid message; `pool` has others, parts of which may get into it."""
    if rng.random() < 0.1:
        return damaged(rng, data)
    outer = fields(data)
    if outer is None or len(outer) != 1:
        return damaged(rng, data)
    number, _, inner = outer[0]
    if (parts := fields(inner)) is None:
        return damaged(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change(rng, parts, pool)
    if rng.random() < 0.03:
        number = rng.randrange(1, 12)
    made = joined([(number, 2, joined(parts))])
    if rng.random() < 0.03:
        made += rng.choice(pool)  # of two messages the last counts, or both are merged
    return made


def damaged(rng, data):
    """Bytes that were changed without regard to what they mean."""
    data = bytearray(data)
    at = rng.randrange(len(data) + 1)
    match rng.randrange(5):
        case 0 if at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        case 3:
            del data[at : at + rng.choice((1, 2, 8))]
        case _ if at < len(data):
            data[at] = rng.randrange(256)
    return bytes(data)


# The wire format of protocol buffers


def fields(data):
    """The fields of a message, each a number, a wire type and a value; None if the bytes are no message."""
    found, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key is None or key < 8:
            return None
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            if size is None or at + size > len(data):
                return None
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            return None
        if value is None:
            return None
        found.append((key >> 3, kind, value))
    return found


def varint(data, at):
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return None, at
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    return None, at


def joined(parts):
    """The bytes of a message."""
    made = bytearray()
    for number, kind, value in parts:
        made += as_varint(number << 3 | kind)
        if kind == 0:
            made += as_varint(value)
        elif kind == 2:
            made += as_varint(len(value)) + value
        else:
            made += value
    return bytes(made)


def as_varint(number):
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return made


def change(rng, parts, pool):
    """Change the fields of a message in one way."""
    how = rng.random()
    if not parts or how < 0.05:
        parts.append((rng.choice((1, 2, 3, 4, 5, 50)), 0, rng.choice(BOUNDARIES)))
    elif how < 0.12:
        del parts[rng.randrange(len(parts))]
    elif how < 0.18:
        number, kind, value = rng.choice(parts)
        parts.append((number, kind, changed(rng, kind, value, pool)))  # the last of several counts
    elif how < 0.21:
        rng.shuffle(parts)
    else:
        at = rng.randrange(len(parts))
        number, kind, value = parts[at]
        parts[at] = (number, kind, changed(rng, kind, value, pool))


def changed(rng, kind, value, pool):
    """Another value of a field."""
    if kind == 0:
        return rng.choice((rng.choice(BOUNDARIES), max(0, value - 1), value + 1, value + 2, value ^ 1))
    if kind == 1:
        return rng.choice((struct.pack("<d", rng.choice(DOUBLES)), rng.randbytes(8), value, bytes(8)))
    return changed_bytes(rng, value, pool) if kind == 2 else rng.randbytes(4)


def changed_bytes(rng, value, pool):
    if value[:1] in (b"{", b"[") and rng.random() < 0.8:
        return changed_json(rng, value)
    match rng.randrange(12):
        case 0 | 1 | 2 if value:
            at = rng.randrange(len(value))
            return value[:at] + rng.randbytes(1) + value[at + 1 :]
        case 4 | 5:
            return borrowed(rng, len(value), pool) or value
        case 6 if len(value) >= 4:
            at = 4 * rng.randrange(len(value) // 4)
            return value[:at] + struct.pack("<f", rng.choice(FLOATS)) + value[at + 4 :]
        case 7:
            return (value + bytes(5000))[: rng.choice(LENGTHS)]
        case 8:
            return rng.choice((value[: len(value) // 8 * 4], value + value))
        case 9 | 10 if len(value) > 64 and (parts := fields(value)):
            return changed_message(rng, parts, pool)
        case _:
            return damaged(rng, value)


def changed_message(rng, parts, pool):
    """A message within a message, such as the ballots of a page; or one within that."""
    at = rng.randrange(len(parts))
    number, kind, inner = parts[at]
    if kind == 2 and (deeper := fields(inner)) and rng.random() < 0.8:
        change(rng, deeper, pool)
        parts[at] = (number, kind, joined(deeper))
    else:
        change(rng, parts, pool)
    return joined(parts)


def borrowed(rng, size, pool):
    """A value of this size in another message."""
    for _ in range(4):
        outer = fields(rng.choice(pool)) or [(0, 0, 0)]
        parts = fields(outer[0][2]) if outer[0][1] == 2 else None
        found = [value for _, kind, value in parts or () if kind == 2 and len(value) == size]
        if found:
            return rng.choice(found)
    return None


# JSON


def changed_json(rng, data):
    """JSON with another value at some place, in the canonical way or another one."""
    if rng.random() < 0.1:
        return damaged(rng, data)
    if rng.random() < 0.002:
        return b"[" * 50_000
    try:
        root = [json.loads(data)]
    except (ValueError, RecursionError):
        return damaged(rng, data)
    for _ in range(rng.choice((1, 1, 2))):
        replace_a_value(rng, root)
    text = json.dumps(root[0], sort_keys=rng.random() < 0.95, separators=(",", ":"), ensure_ascii=rng.random() < 0.05)
    return text.encode(errors="surrogatepass") if rng.random() < 0.5 else text.encode(errors="replace")


def replace_a_value(rng, root):
    places = list(walk(root))
    parent, key = rng.choice(places)
    match rng.randrange(8):
        case 0 if isinstance(parent, dict):
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = parent[key]
        case 0 | 1 if parent is not root:
            parent.insert(key, parent[key])
        case 2:
            other, there = rng.choice(places)
            parent[key] = json.loads(json.dumps(other[there]))
        case 3 if isinstance(parent[key], str) and parent[key]:
            text = bytearray(parent[key].encode(errors="replace"))
            text[rng.randrange(len(text))] = rng.choice(b"0123456789abcdefz")
            parent[key] = text.decode(errors="replace")
        case 4 | 5 if type(parent[key]) in (int, float):
            parent[key] += rng.choice((-1, 1, 2, 1000))
        case _:
            parent[key] = json.loads(json.dumps(rng.choice(VALUES)))


def walk(node):
    """Every place of a value: what it is in, and its key there."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from walk(value)
