"""A client is who its certificate says only on the connection that it has signed for; over real sockets, with TLS."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.parties import recipe

from cyber0.errors import InvalidKeys, Refused, Unreachable
from cyber0.network import authentication, certificates, keys
from cyber0.network.authentication import LONGEST, Authority, ClientCertificate, new_challenge, read_challenge
from cyber0.network.channel import GREETING, Credentials, greeting_and_word
from cyber0.network.connect import connect
from cyber0.network.handshake import refusal
from cyber0.network.keys import channel_credentials, client_context, peer_name, server_context, server_credentials
from cyber0.network.server import Federator
from cyber0.network.session import attend
from cyber0.protocol import chain, promise, roster
from cyber0.protocol.codec import decode_from_federator, encode
from cyber0.protocol.ledger import Memory
from cyber0.protocol.messages import Ask, Bye, Invitation
from cyber0.protocol.settings import Settings
from cyber0.protocol.signing import PublicKey, private_key

NOT_HERE = "its signature does not fit its certificate, this connection and the federator's certificate"
RIGHT = "it must be a client's, made by cyber0 keys sign on the operator's machine"
AUTHORITY, SAME = certificates.authority("ours", days=9), certificates.authority("cyber0", days=9)
FEDERATOR = certificates.federator(AUTHORITY, ("127.0.0.1",), days=9)


def der(certificate):
    return certificate.public_bytes(Encoding.DER)


def shown(pair):
    return ClientCertificate(der(pair.certificate), pair.key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authentication") / "keys"
    keys.init(folder)
    keys.issue("client-0", folder)
    return folder


@pytest.fixture(scope="module")
def own(folder):
    return channel_credentials(folder / "clients/client-0").own


@asynccontextmanager
async def serving(folder):
    """The port of a federator that knows clients by their certificates."""
    federator = Federator(Settings.of(recipe()), Memory(), peer_name=peer_name, certified=True)
    try:
        yield await federator.start("127.0.0.1:0", server_credentials(folder))
    finally:
        federator.stop("enough")
        await federator.close()


class Visitor:
    """Somebody who speaks TLS and nothing else by itself."""

    @classmethod
    async def at(cls, port, folder):
        made, context = cls(), client_context((folder / "ca.pem").read_text())
        made.reader, made.writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        made.writer.write(GREETING + b"\n")
        greeting, word = greeting_and_word((await made.reader.readline()).rstrip())
        assert greeting == GREETING
        made.challenge = read_challenge(word)
        made.federator = made.writer.get_extra_info("ssl_object").getpeercert(True)
        assert len(made.challenge) == 32
        return made

    async def says(self, *messages):
        """The first message of the federator after these; None if it hangs up."""
        for message in messages:
            self.writer.write(len(message).to_bytes(4, "big") + message)
        try:
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return decode_from_federator(await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        finally:
            self.writer.close()


def visit(folder, talk):
    async def run():
        async with serving(folder) as port:
            return await talk(port)

    return asyncio.run(run())


def answered(folder, answer):
    """What a federator says to an answer, that is made for the visitor, and to an Ask."""

    async def talk(port):
        visitor = await Visitor.at(port, folder)
        return await visitor.says(answer(visitor), encode(Ask()))

    return visit(folder, talk)


def test_who_answers_is_invited(folder, own):
    said = answered(folder, lambda visitor: own.answer(visitor.challenge, visitor.federator))
    assert isinstance(said, Invitation)
    assert Settings.from_invitation(said).place == 0


# Signatures that were made for something else


def test_the_challenge_of_another_connection_is_no_proof(folder, own):
    async def talk(port):
        first, second = await Visitor.at(port, folder), await Visitor.at(port, folder)
        assert first.challenge != second.challenge
        said = await second.says(own.answer(first.challenge, first.federator))
        return said, await first.says(own.answer(first.challenge, first.federator), encode(Ask()))

    bye, invitation = visit(folder, talk)
    assert bye.final
    assert NOT_HERE in bye.reason
    assert isinstance(invitation, Invitation)  # the other one is who it is all the same


def test_an_answer_is_good_for_one_connection(folder, own):
    async def talk(port):
        visitor = await Visitor.at(port, folder)
        answer = own.answer(visitor.challenge, visitor.federator)
        assert isinstance(await visitor.says(answer, encode(Ask())), Invitation)
        return [await (await Visitor.at(port, folder)).says(answer) for _ in range(3)]

    for bye in visit(folder, talk):
        assert NOT_HERE in bye.reason


def test_a_federator_of_the_same_authority_cannot_pass_a_client_on(folder, tmp_path):
    """It has a certificate that the client trusts, for the same host, and passes on every byte."""
    other = certificates.federator(keys.read_authority(folder), certificates.LOOPBACK, days=1)
    for name, content in {"cert.pem": other.pem, "key.pem": other.key_pem}.items():
        (tmp_path / name).write_bytes(content)

    async def copy(reader, writer):
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(2**16):
                writer.write(data)
        writer.close()

    async def talk(port):
        async def pass_on(reader, writer):
            there = client_context((folder / "ca.pem").read_text())
            far = await asyncio.open_connection("127.0.0.1", port, ssl=there)
            await asyncio.gather(copy(reader, far[1]), copy(far[0], writer))

        context = server_context(tmp_path / "cert.pem", tmp_path / "key.pem")
        server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
        between = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        credentials = channel_credentials(folder / "clients/client-0")
        try:
            with pytest.raises(Refused, match=NOT_HERE):
                await attend(between, lambda _: None, credentials=credentials, give_up=20)
            said = await asyncio.to_thread(refusal, between, folder / "clients/client-0")
        finally:
            server.close()
        await attend_once(port, credentials)
        return said

    assert NOT_HERE in visit(folder, talk)


async def attend_once(port, credentials):
    """The same client, without anybody in between, is invited."""
    channel = await connect(f"127.0.0.1:{port}", credentials, limit=2**20)
    channel.put(encode(Ask()))
    (said,) = await channel.read()
    assert isinstance(decode_from_federator(said), Invitation)
    channel.channel.abort()


def test_a_vote_is_no_answer_and_an_answer_no_vote():
    """What a client signs to come in begins as nothing else that it signs."""
    signed = [
        chain.vote_statement(bytes(32), 0, bytes(32), bytes(32)),
        chain.link_statement(bytes(32), 0, bytes(32)),
        chain.done_statement(bytes(32), 0, bytes(32), 0),
        roster.Change("revoke", "ann").statement(bytes(32)),
        promise.promise_statement(bytes(32), "ann", b""),
    ]
    for statement in signed:
        domain = statement.partition(b"\0")[0]
        assert domain + b"\0" != authentication.DOMAIN


# Certificates that are not good enough


def other_time(ca, begin, end):
    """A client's certificate that is valid from then on for so many days."""
    now, key = datetime.now(UTC), certificates.new_key()
    like = certificates.client_certificate(ca, "client-0", key.public_key(), days=1)
    made = x509.CertificateBuilder(
        issuer_name=like.issuer,
        subject_name=like.subject,
        public_key=key.public_key(),
        serial_number=7,
        not_valid_before=now + timedelta(days=begin),
        not_valid_after=now + timedelta(days=end),
        extensions=list(like.extensions),
    )
    return certificates.Pair(key, made.sign(ca.key, SHA256()))


def other_curve(ca):
    key = ec.generate_private_key(ec.SECP384R1())
    return certificates.Pair(key, certificates.client_certificate(ca, "client-0", key.public_key(), days=1))


KINDS = {
    "of another authority of the same name": lambda _: certificates.client(SAME, "client-0", 9),
    "of an authority of another name": lambda _: certificates.client(AUTHORITY, "client-0", 9),
    "its own authority": lambda _: certificates.authority("client-0", 9),
    "expired": lambda ca: other_time(ca, -9, -1),
    "not valid yet": lambda ca: other_time(ca, 1, 9),
    "a federator's": lambda ca: certificates.federator(ca, ("client-0",), 9),
    "the authority's": lambda ca: ca,
    "signed by a client": lambda ca: certificates.client(certificates.client(ca, "client-1", 9), "client-0", 9),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_tls_would_refuse_is_refused(folder, kind):
    pair = KINDS[kind](keys.read_authority(folder))
    bye = answered(folder, lambda visitor: shown(pair).answer(visitor.challenge, visitor.federator))
    assert isinstance(bye, Bye)
    assert RIGHT in bye.reason
    assert bye.final == (kind not in ("expired", "not valid yet"))  # by another clock it would be


def test_a_client_whose_certificate_is_not_valid_by_the_federators_clock_waits_and_says_why(folder):
    late = shown(other_time(keys.read_authority(folder), 1, 9))
    credentials = Credentials(client_context((folder / "ca.pem").read_text()), own=late)

    async def talk(port):
        await attend(f"127.0.0.1:{port}", lambda _: None, credentials=credentials, give_up=0.1)

    with pytest.raises(Unreachable, match="not valid at validation time"):
        visit(folder, talk)


def test_a_certificate_is_of_no_use_without_its_key(folder, own):
    thief = ClientCertificate(own.certificate, certificates.new_key())
    assert NOT_HERE in answered(folder, lambda visitor: thief.answer(visitor.challenge, visitor.federator)).reason


def test_a_key_that_signs_no_votes_is_refused_in_words(folder):
    pair = other_curve(keys.read_authority(folder))
    bye = answered(folder, lambda _: bytes(64) + der(pair.certificate))
    assert "secp384r1" in bye.reason


@pytest.mark.parametrize("size", [1, 63, 64, 65, LONGEST])
def test_garbage_is_refused_in_words(folder, size):
    bye = answered(folder, lambda _: b"\x30" * size)
    assert RIGHT in bye.reason
    assert bye.final


def test_an_answer_that_is_too_long_is_not_read(folder):
    bye = answered(folder, lambda _: bytes(LONGEST + 1))
    assert bye.reason == f"a message of {LONGEST + 1} bytes is too long: at most {LONGEST} are allowed"


def test_who_asks_before_it_answers_is_told_nothing(folder):
    assert RIGHT in answered(folder, lambda _: encode(Ask(client="client-0"))).reason


def test_there_is_one_answer_to_a_connection(folder, own, monkeypatch):
    """So that whoever guesses costs one check."""
    checks, verify = [], Authority._verify
    monkeypatch.setattr(Authority, "_verify", lambda *given: checks.append(1) or verify(*given))

    async def talk(port):
        visitor = await Visitor.at(port, folder)
        answer = own.answer(visitor.challenge, visitor.federator)
        said = await visitor.says(bytes(64) + own.certificate, answer, answer, encode(Ask()))
        return said, await visitor.reader.read()

    bye, rest = visit(folder, talk)
    assert NOT_HERE in bye.reason
    assert (rest, len(checks)) == (b"", 1)


def test_a_server_that_asks_for_no_certificate_is_shown_none(folder):
    """Such as one for clients that show tokens."""
    heard = []

    async def talk():
        async def greet(reader, writer):
            writer.write(GREETING + b"\n")
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                heard.append(await reader.readexactly(len(GREETING) + 1 + 4 + len(encode(Ask()))))
            writer.close()

        own = folder / "federator"
        context = server_context(own / "cert.pem", own / "key.pem")
        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        channel = await connect(address, channel_credentials(folder / "clients/client-0"), limit=2**20)
        channel.put(encode(Ask()))
        assert await channel.read() == []
        server.close()

    asyncio.run(talk())
    assert heard == [GREETING + b"\n" + len(encode(Ask())).to_bytes(4, "big") + encode(Ask())]


@pytest.mark.parametrize("challenge", [b"00" * 31, b"00" * 33, b"zz" * 32, b"what?"])
def test_a_client_signs_no_challenge_of_another_length(folder, challenge):
    async def talk():
        said = []

        async def greet(reader, writer):
            writer.write(GREETING + b" " + challenge + b"\n")
            said.append(await reader.read())
            writer.close()

        own = folder / "federator"
        context = server_context(own / "cert.pem", own / "key.pem")
        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        channel = await connect(address, channel_credentials(folder / "clients/client-0"), limit=2**20)
        with pytest.raises(Refused, match="greets as no federator does"):
            await channel.read()
        channel.channel.abort()
        server.close()
        return said

    asyncio.run(talk())


# Whatever comes


OWN = shown(certificates.client(AUTHORITY, "ann", days=9))
CHALLENGE = read_challenge(new_challenge())
ANSWER = OWN.answer(CHALLENGE, der(FEDERATOR.certificate))


def test_the_answer_is_right():
    certificate, _ = Authority(AUTHORITY.certificate, der(FEDERATOR.certificate)).proved(ANSWER, CHALLENGE)
    assert certificate == OWN.certificate


@settings(max_examples=300)
@given(st.integers(0, len(ANSWER) - 1), st.integers(1, 255))
def test_no_byte_of_an_answer_can_be_changed(place, change):
    changed = bytearray(ANSWER)
    changed[place] ^= change
    with pytest.raises(InvalidKeys):
        Authority(AUTHORITY.certificate, der(FEDERATOR.certificate)).proved(bytes(changed), CHALLENGE)


@settings(max_examples=200)
@given(st.binary(max_size=LONGEST))
def test_nothing_else_proves_anything(data):
    with pytest.raises(InvalidKeys):
        Authority(AUTHORITY.certificate, der(FEDERATOR.certificate)).proved(data, CHALLENGE)


@settings(max_examples=50)
@given(st.from_regex(keys.NAME, fullmatch=True))
def test_every_name_that_can_be_issued_can_come_in(name):
    own = shown(certificates.client(AUTHORITY, name, days=9))
    answer = own.answer(CHALLENGE, der(FEDERATOR.certificate))
    certificate, key = Authority(AUTHORITY.certificate, der(FEDERATOR.certificate)).proved(answer, CHALLENGE)
    assert keys.common_name(x509.load_der_x509_certificate(certificate)) == name
    assert isinstance(own.key.public_key(), PublicKey)
    assert len(key) == 33


def test_the_key_of_the_folder_is_the_one_that_signs(folder, own):
    assert own.key.private_numbers() == private_key(folder / "clients/client-0/key.pem").private_numbers()


# Who reads what clients say


def test_a_federator_that_passes_on_what_another_one_offers_is_refused(folder, tmp_path):
    """It has a certificate of the same authority, for the same host, and gets invitations as a client of the run."""
    other = certificates.federator(keys.read_authority(folder), certificates.LOOPBACK, 9)
    (tmp_path / "cert.pem").write_bytes(other.pem)
    (tmp_path / "key.pem").write_bytes(other.key_pem)
    own = folder / "clients/client-0"
    votes = []

    def options():
        authority = x509.load_pem_x509_certificate((own / "ca.pem").read_bytes())
        return {"credentials": channel_credentials(own), "authority": authority, "give_up": 20.0}

    async def run():
        federator = Federator(
            Settings.of(recipe()), Memory(), peer_name=peer_name, certified=True,
            key=private_key(keys.federator_key(folder)), certificate=keys.certificate_of_federator(folder),
        )  # fmt: skip
        port = await federator.start("127.0.0.1:0", server_credentials(folder))

        async def between(reader, writer):
            await reader.readline()
            writer.write(GREETING + b" " + new_challenge().encode() + b"\n")
            far = await connect(f"127.0.0.1:{port}", channel_credentials(own), limit=2**22)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))  # its answer is no use
                while size := int.from_bytes(await reader.readexactly(4), "big"):
                    far.put(await reader.readexactly(size))
                    for message in await far.read():
                        writer.write(len(message).to_bytes(4, "big") + message)
                    votes.append(size)
            far.channel.abort()
            writer.close()

        context = server_context(tmp_path / "cert.pem", tmp_path / "key.pem")
        server = await asyncio.start_server(between, "127.0.0.1", 0, ssl=context)
        bad = server.sockets[0].getsockname()[1]
        try:
            with pytest.raises(
                Refused, match="shows another certificate than that of the federator whose run it offers"
            ):
                await attend(f"127.0.0.1:{bad}", lambda _: pytest.fail("it was believed"), **options())
        finally:
            server.close()
            federator.stop("enough")
            await federator.close()

    asyncio.run(run())
    assert len(votes) == 1  # an Ask, which says nothing


def test_another_certificate_of_the_same_name_sends_nobody_away(folder, own):
    """As of a key that was replaced: its streams count for themselves."""
    stolen = shown(certificates.client(keys.read_authority(folder), "client-0", 9))

    async def talk(port):
        async def opened(who):
            visitor = await Visitor.at(port, folder)
            message = who.answer(visitor.challenge, visitor.federator)
            visitor.writer.write(len(message).to_bytes(4, "big") + message)
            return visitor

        first = await opened(own)
        others = [await opened(stolen) for _ in range(5)]
        said = [await visitor.says(encode(Ask())) for visitor in (first, others[0], others[-1])]
        for visitor in others:
            visitor.writer.close()
        return said

    invited, sent_away, last = visit(folder, talk)
    assert isinstance(invited, Invitation)
    assert isinstance(sent_away, Bye)
    assert "more than 3 streams of one client" in sent_away.reason
    assert isinstance(last, Invitation)


def test_a_long_greeting_is_not_read(folder):
    async def talk(port):
        context = client_context((folder / "ca.pem").read_text())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(GREETING + b" " + b"x" * 15_000 + b"\n")
        said = b""
        with suppress(ConnectionError):
            said = await reader.read()
        writer.close()
        return said

    assert visit(folder, talk) == b""
