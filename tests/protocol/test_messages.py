"""Messages come back as they were sent; bytes that are no message raise one error, whatever they are."""

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from cyber0.errors import RejectedMessage
from cyber0.protocol import wire_pb2
from cyber0.protocol.codec import LIMIT, decode_from_client, decode_from_federator, encode, size_limit
from cyber0.protocol.messages import (
    Ask,
    Audit,
    Bye,
    CatchUp,
    Committed,
    Done,
    Evaluation,
    Hello,
    Invitation,
    Page,
    Rejection,
    Request,
    RoundOpen,
    Vote,
    Welcome,
)

rounds = st.integers(0, 2**32 - 1)
digests = st.binary(min_size=32, max_size=32)
maybe = st.just(b"") | digests
scalars = st.integers(0, 20).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n))
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
names = words.filter(lambda name: name and name.isprintable())
numbers = st.floats(allow_nan=False)
keys = st.just(b"") | st.binary(min_size=32, max_size=33)
signatures = st.just(b"") | st.binary(min_size=64, max_size=64)
hashes = st.integers(0, 4).flatmap(lambda n: st.binary(min_size=32 * n, max_size=32 * n))
anchors = st.just(b"") | st.binary(min_size=96, max_size=96)
texts = st.binary(max_size=100)
verdicts = st.sampled_from(["counted", "equivocation", "late", "rejected"])

from_client = st.one_of(
    st.builds(
        Hello,
        names,
        digests,
        digests,
        rounds,
        maybe,
        maybe,
        st.booleans(),
        st.booleans(),
        rounds,
        texts,
        texts,
        keys,
    ),
    st.builds(Ask, rounds),
    st.builds(Audit, rounds, rounds),
    st.builds(Request, texts),
    st.builds(Done, rounds, st.integers(0, 2**64 - 1), signatures),
    st.builds(Vote, rounds, scalars, st.none() | st.integers(0, 2**64 - 1), signatures),
    st.builds(Evaluation, rounds, st.none() | st.floats(0, 1), numbers, st.integers(1, 2**32 - 1)),
)
from_federator = st.one_of(
    st.builds(Invitation, st.binary(), keys, texts, rounds),
    st.builds(Welcome, st.binary(), rounds, st.binary(), rounds),
    st.builds(RoundOpen, rounds),
    st.builds(Committed, rounds, scalars, hashes, signatures, texts),
    st.builds(CatchUp, rounds, scalars, hashes, signatures, texts, anchors),
    st.builds(Page, rounds, rounds, texts, st.booleans()),
    st.builds(Rejection, rounds, verdicts, words, st.booleans()),
    st.builds(Bye, words, st.booleans(), st.booleans(), st.booleans()),
)
DECODERS = [decode_from_client, decode_from_federator]


@given(from_client)
def test_what_a_client_sends_comes_back(message):
    assert decode_from_client(encode(message)) == message


@given(from_federator)
def test_what_the_federator_sends_comes_back(message):
    assert decode_from_federator(encode(message)) == message


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary())
def test_any_bytes_are_a_message_or_rejected(decode, data):
    reads_or_rejects(decode, data)


@pytest.mark.parametrize("decode", DECODERS)
@given(message=from_client | from_federator, edits=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_altered_messages_are_a_message_or_rejected(decode, message, edits):
    data = bytearray(encode(message))
    for place, byte in edits:
        if data:
            data[place % len(data)] = byte
    reads_or_rejects(decode, bytes(data))


@pytest.mark.parametrize("decode", DECODERS)
@given(message=from_client | from_federator, cut=st.integers(0), tail=st.binary(max_size=30))
def test_cut_and_glued_messages_are_a_message_or_rejected(decode, message, cut, tail):
    data = encode(message)
    reads_or_rejects(decode, data[: cut % (len(data) + 1)] + tail)


def reads_or_rejects(decode, data):
    try:
        message = decode(data)
    except RejectedMessage:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("decode", DECODERS)
def test_too_long_is_refused_before_it_is_read(decode):
    class Unread(bytes):
        def __len__(self):
            return LIMIT + 1

    with pytest.raises(RejectedMessage, match=f"a message of {LIMIT + 1} bytes is too long: at most {LIMIT}"):
        decode(Unread())


@given(st.integers(1, 10**7))
def test_the_limit_leaves_room_for_every_vote(number):
    assert 4 * number + 64 <= size_limit(number)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Hello("", bytes(32), bytes(32)), "hello.name = '' must be 1 to 100 printable characters"),
        (Hello("alice", bytes(31), bytes(32)), "hello.manifest = .* must be a digest of 32 bytes"),
        (Hello("alice", bytes(32), bytes(32), head=b"x"), "hello.head = b'x' must be a digest of 32 bytes, or empty"),
        (Hello("alice", bytes(32), bytes(32), key=b"x"), "hello.key = b'x' must be a public key of 32 or 33 bytes"),
        (Vote(0, bytes(4), signature=b"x"), "vote.signature = b'x' must be 64 bytes, or empty"),
        (Request(bytes(2**16 + 1)), "request.change = .* must be at most 65536 bytes"),
        (Vote(0, bytes(7)), "vote.scalars = .* must be float32 numbers of 4 bytes each"),
        (Evaluation(0, 1.5, 0.0, 1), "evaluation.accuracy = 1.5 must be a number from 0 to 1"),
        (Evaluation(0, 0.5, float("nan"), 1), "evaluation.loss = nan must be a number"),
        (Evaluation(0, 0.5, 0.0, 0), "evaluation.samples = 0 must be at least 1"),
    ],
    ids=["name", "manifest", "head", "key", "signature", "change", "scalars", "accuracy", "loss", "samples"],
)
def test_a_rejection_names_the_field_and_what_is_right(message, reason):
    with pytest.raises(RejectedMessage, match=reason):
        decode_from_client(encode(message))


def test_the_generated_code_is_that_of_the_proto(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    source, target = Path(wire_pb2.__file__).parents[2], tmp_path / "wire.pb"
    assert protoc.main(["", f"-I{source}", f"--descriptor_set_out={target}", "cyber0/protocol/wire.proto"]) == 0
    (made,) = FileDescriptorSet.FromString(target.read_bytes()).file
    for message in made.message_type:
        for part in message.field:
            part.ClearField("json_name")
    assert made == FileDescriptorProto.FromString(wire_pb2.DESCRIPTOR.serialized_pb)


def test_no_message_of_the_other_side():
    with pytest.raises(RejectedMessage):
        decode_from_client(encode(Page(0, 0, b"a federator's word")))


def test_a_vote_is_small():
    assert len(encode(Vote(2**32 - 2, bytes(32), 2**64 - 1))) <= 51
    assert len(encode(Vote(20_000, bytes(32)))) <= 40
    assert len(encode(Vote(20_000, bytes(32), signature=bytes(64)))) <= 40 + 66


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Committed(0, bytes(4), bytes(31)), "committed.ballots = .* must be hashes of 32 bytes each"),
        (Committed(0, bytes(4), bytes(32), bytes(63)), "committed.signature = .* must be 64 bytes, or empty"),
        (CatchUp(0, bytes(4), anchor=bytes(95)), "catch_up.anchor = .* must be 96 bytes, or empty"),
        (CatchUp(0, bytes(4), changes=bytes(2**16 + 1)), "catch_up.changes = .* must be at most 65536 bytes"),
        (Invitation(b"", bytes(31)), "invitation.federator = .* must be a public key of 32 or 33 bytes, or empty"),
    ],
    ids=["ballots", "signature", "anchor", "changes", "federator"],
)
def test_a_rejection_of_what_the_federator_sends(message, reason):
    with pytest.raises(RejectedMessage, match=reason):
        decode_from_federator(encode(message))
