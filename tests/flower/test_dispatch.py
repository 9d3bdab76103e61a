"""A client has one session at a time: one that is lost or fails is opened again, until there is a report."""

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cyber0.flower import dispatch as module
from cyber0.flower.assignment import Node
from cyber0.flower.dispatch import Dispatch, Report, SessionInfo

ANN = Node(7, "ann")


class Post:
    """Flower as far as sessions need it, with faults that its processes show only now and then."""

    def __init__(self):
        self.sent, self.replies, self.fault = [], [], None

    def push_messages(self, messages):
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault == "refuses":
            return [None for _ in messages]
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.sent.append(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, identifiers):
        there = [reply for reply in self.replies if reply.metadata.reply_to_message_id in identifiers]
        self.replies = [reply for reply in self.replies if reply not in there]
        return there

    def reply(self, number, content):
        self.replies.append(Message(content, reply_to=self.sent[number]))

    def tokens(self):
        return [SessionInfo.read(message.content).token for message in self.sent]


@pytest.fixture
def post(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(module, "PATIENCE", (0.0, 0.0))
    return Post()


@pytest.fixture
def sessions(post):
    tokens = iter("abcdefgh")
    return Dispatch(post, lambda name: SessionInfo("localhost:1", b"PEM", next(tokens), name), lambda _: None)


def look(sessions, online=(ANN,)):
    sessions.collect()
    sessions.renew({node.name: node for node in online})


def test_a_report_ends_it(post, sessions):
    sessions.expect(["ann"])
    look(sessions)
    post.reply(0, Report(5, 9).record())
    look(sessions)
    sessions.expect(["ann"])
    look(sessions)
    assert (sessions.reports, post.tokens()) == ({"ann": Report(5, 9)}, ["a"])


@pytest.mark.parametrize("answer", [Error(1, "no data"), RecordDict()])
def test_a_session_that_fails_is_opened_again(post, sessions, answer):
    sessions.expect(["ann"])
    look(sessions)
    post.reply(0, answer)
    look(sessions)
    post.reply(1, Report(5, 9).record())
    look(sessions)
    assert (sessions.reports, post.tokens()) == ({"ann": Report(5, 9)}, ["a", "b"])


@pytest.mark.parametrize("fault", [httpx.ConnectError("no route"), "refuses"])
def test_a_session_that_flower_does_not_take_is_opened_later(post, sessions, fault):
    sessions.expect(["ann"])
    post.fault = fault
    if isinstance(fault, Exception):
        with pytest.raises(httpx.ConnectError):
            look(sessions)
    else:
        look(sessions)
    post.fault = None
    look(sessions)
    assert post.tokens() == ["b"]


def test_a_node_that_is_offline_is_waited_for(post, sessions):
    sessions.expect(["ann"])
    look(sessions, online=())
    assert post.sent == []
    look(sessions)
    assert len(post.sent) == 1


def test_what_an_older_session_says_does_not_count(post, sessions):
    sessions.expect(["ann"])
    look(sessions)
    sessions.expect(["ann"])
    look(sessions)
    post.reply(0, Report(4, 8).record())
    post.reply(1, Report(5, 9).record())
    look(sessions)
    assert sessions.reports == {"ann": Report(5, 9)}
