from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToFederator(_message.Message):
    __slots__ = ("hello", "vote", "evaluation", "ask", "done", "audit", "request", "recalled")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    vote: Vote
    evaluation: Evaluation
    ask: Ask
    done: Done
    audit: Audit
    request: Request
    recalled: Recalled
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., vote: _Optional[_Union[Vote, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., recalled: _Optional[_Union[Recalled, _Mapping]] = ...) -> None: ...

class ToClient(_message.Message):
    __slots__ = ("welcome", "round_open", "committed", "catch_up", "rejection", "bye", "invitation", "page", "recall")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ROUND_OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    round_open: RoundOpen
    committed: Committed
    catch_up: CatchUp
    rejection: Rejection
    bye: Bye
    invitation: Invitation
    page: Page
    recall: Recall
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., round_open: _Optional[_Union[RoundOpen, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., invitation: _Optional[_Union[Invitation, _Mapping]] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("version", "client")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    client: str
    def __init__(self, version: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("version", "settings", "federator", "certificate")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FEDERATOR_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    version: int
    settings: bytes
    federator: bytes
    certificate: bytes
    def __init__(self, version: _Optional[int] = ..., settings: _Optional[bytes] = ..., federator: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "name", "manifest", "base", "commits", "head", "run", "evaluates", "replayed", "layout", "meaning", "key", "signature", "voted", "voted_link", "voted_signature", "brief", "promise", "promise_signature")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EVALUATES_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    VOTED_FIELD_NUMBER: _ClassVar[int]
    VOTED_LINK_FIELD_NUMBER: _ClassVar[int]
    VOTED_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    manifest: bytes
    base: bytes
    commits: int
    head: bytes
    run: bytes
    evaluates: bool
    replayed: bool
    layout: bytes
    meaning: bytes
    key: bytes
    signature: bytes
    voted: int
    voted_link: bytes
    voted_signature: bytes
    brief: bool
    promise: bytes
    promise_signature: bytes
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., manifest: _Optional[bytes] = ..., base: _Optional[bytes] = ..., commits: _Optional[int] = ..., head: _Optional[bytes] = ..., run: _Optional[bytes] = ..., evaluates: _Optional[bool] = ..., replayed: _Optional[bool] = ..., layout: _Optional[bytes] = ..., meaning: _Optional[bytes] = ..., key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., voted: _Optional[int] = ..., voted_link: _Optional[bytes] = ..., voted_signature: _Optional[bytes] = ..., brief: _Optional[bool] = ..., promise: _Optional[bytes] = ..., promise_signature: _Optional[bytes] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("round", "scalars", "fingerprint", "signature")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    scalars: bytes
    fingerprint: int
    signature: bytes
    def __init__(self, round: _Optional[int] = ..., scalars: _Optional[bytes] = ..., fingerprint: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("round", "accuracy", "loss", "samples")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    round: int
    accuracy: float
    loss: float
    samples: int
    def __init__(self, round: _Optional[int] = ..., accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("round", "fingerprint", "signature")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    round: int
    fingerprint: int
    signature: bytes
    def __init__(self, round: _Optional[int] = ..., fingerprint: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("round", "page")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    round: int
    page: int
    def __init__(self, round: _Optional[int] = ..., page: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("change",)
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    change: bytes
    def __init__(self, change: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "identity", "round", "roster", "lost")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    version: int
    identity: bytes
    round: int
    roster: bytes
    lost: int
    def __init__(self, version: _Optional[int] = ..., identity: _Optional[bytes] = ..., round: _Optional[int] = ..., roster: _Optional[bytes] = ..., lost: _Optional[int] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: int
    def __init__(self, first: _Optional[int] = ...) -> None: ...

class Recalled(_message.Message):
    __slots__ = ("first", "scalars", "ballots", "signature", "changes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    first: int
    scalars: bytes
    ballots: bytes
    signature: bytes
    changes: bytes
    def __init__(self, first: _Optional[int] = ..., scalars: _Optional[bytes] = ..., ballots: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., changes: _Optional[bytes] = ...) -> None: ...

class RoundOpen(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("round", "scalars", "ballots", "signature", "changes", "roster")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    round: int
    scalars: bytes
    ballots: bytes
    signature: bytes
    changes: bytes
    roster: bytes
    def __init__(self, round: _Optional[int] = ..., scalars: _Optional[bytes] = ..., ballots: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., changes: _Optional[bytes] = ..., roster: _Optional[bytes] = ...) -> None: ...

class CatchUp(_message.Message):
    __slots__ = ("first", "scalars", "ballots", "signature", "changes", "anchor", "rosters")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    ROSTERS_FIELD_NUMBER: _ClassVar[int]
    first: int
    scalars: bytes
    ballots: bytes
    signature: bytes
    changes: bytes
    anchor: bytes
    rosters: bytes
    def __init__(self, first: _Optional[int] = ..., scalars: _Optional[bytes] = ..., ballots: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., changes: _Optional[bytes] = ..., anchor: _Optional[bytes] = ..., rosters: _Optional[bytes] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("round", "page", "data", "last")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    round: int
    page: int
    data: bytes
    last: bool
    def __init__(self, round: _Optional[int] = ..., page: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class Ballots(_message.Message):
    __slots__ = ("ballots", "scalars", "changes")
    BALLOTS_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ballots: _containers.RepeatedCompositeFieldContainer[Ballot]
    scalars: bytes
    changes: bytes
    def __init__(self, ballots: _Optional[_Iterable[_Union[Ballot, _Mapping]]] = ..., scalars: _Optional[bytes] = ..., changes: _Optional[bytes] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("client", "verdict", "reason", "scalars", "digest", "signature")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    client: str
    verdict: str
    reason: str
    scalars: bytes
    digest: bytes
    signature: bytes
    def __init__(self, client: _Optional[str] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., scalars: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("round", "verdict", "reason", "replay")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    round: int
    verdict: str
    reason: str
    replay: bool
    def __init__(self, round: _Optional[int] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., replay: _Optional[bool] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason", "finished", "final", "replay")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    reason: str
    finished: bool
    final: bool
    replay: bool
    def __init__(self, reason: _Optional[str] = ..., finished: _Optional[bool] = ..., final: _Optional[bool] = ..., replay: _Optional[bool] = ...) -> None: ...
