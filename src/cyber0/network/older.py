"""What others than clients of this version are told at a federator's port.

Clients of version 1 spoke gRPC, so they are refused in its words, and a browser in those of HTTP/1. A frame of HTTP/2
is its length in three bytes, its type, its flags, the number of its stream, and its content.
"""

from cyber0.protocol.messages import VERSION

__all__ = ["answer"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OTHER_VERSION = f"this federator speaks version {VERSION} of the protocol, not 1: both need the same cyber0"
BROWSER = b"This is the port of cyber0 join. A federator shows what happens at the port of cyber0 serve --metrics.\n"
HEADERS, SETTINGS = 1, 4
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAMES = 16  # that are answered; a client begins with three or four


def answer(data: bytes) -> bytes:
    """Return what to write after all that somebody has sent who speaks HTTP; nothing for everybody else.

    To HTTP/2 these are settings, and a refusal for each of the first calls.

    >>> answer(PREFACE).hex(), answer(b"what?")
    ('000000040000000000', b'')
    """
    if data.startswith((b"GET ", b"HEAD ", b"POST ")):
        size = str(len(BROWSER)).encode()
        return (
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: " + size + b"\r\n\r\n" + BROWSER
        )
    if not data.startswith(PREFACE):
        return b""
    at, parts = len(PREFACE), [_frame(SETTINGS, 0, 0, b"")]
    for _ in range(FRAMES):
        if len(data) < at + 9:
            break
        size, kind, number = (int.from_bytes(data[at + a : at + b], "big") for a, b in ((0, 3), (3, 4), (5, 9)))
        if kind == SETTINGS and not data[at + 4] & ACK:
            parts.append(_frame(SETTINGS, ACK, 0, b""))
        if kind == HEADERS:
            parts.append(_frame(HEADERS, END_STREAM | END_HEADERS, number, _refusal(OTHER_VERSION)))
        at += 9 + size
    return b"".join(parts)


def _refusal(sentence: str) -> bytes:
    """Return the headers of a call that fails, not compressed, as gRPC writes them."""
    status = {"content-type": "application/grpc", "grpc-status": "9", "grpc-message": sentence}  # failed precondition
    fields = [
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in status.items()
    ]
    return b"\x88" + b"".join(fields)  # :status 200; a text has fewer than 127 bytes


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content
