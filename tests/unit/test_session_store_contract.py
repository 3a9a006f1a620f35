"""The contract suite for those who bring a store: the one in memory passes it, and each broken one fails its test."""

import copy
import json
import posixpath
import time
import unicodedata
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from trading_agent.conversation.stores import InMemoryStore, InvalidSession, SessionStore
from trading_agent.conversation.stores.base import encode_data, encode_id
from trading_agent.testing import SessionStoreContract

Kept = Any
"""What a store keeps of a session: JSON text, or in some that are broken the data itself."""


class TestInMemoryStore(SessionStoreContract):
    """The store in memory."""

    def make_store(self) -> SessionStore:
        return InMemoryStore()


class Sound(SessionStore):
    """A store that does nothing wrong; the broken ones differ from it in one thing."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        key, value = self.key(session_id), self.put_in(session_id, data)
        self.kept[key] = value

    def load(self, session_id: str) -> dict[str, Any] | None:
        key = self.key(session_id)
        return self.take_out(self.kept[key]) if key in self.kept else None

    def delete(self, session_id: str) -> bool:
        return self.kept.pop(self.key(session_id), None) is not None

    def list_sessions(self) -> list[str]:
        return sorted(self.kept)

    def key(self, session_id: str) -> str:
        return encode_id(session_id).decode()

    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return encode_data(session_id, data)

    def take_out(self, value: Kept) -> Kept:
        return json.loads(value)


class TestSound(SessionStoreContract):
    """A store of somebody else's."""

    def make_store(self) -> SessionStore:
        return Sound()


class Persistent(Sound):
    """A store over something that outlives it."""

    def __init__(self, kept: dict[str, Kept] | None = None) -> None:
        self.kept = {} if kept is None else kept


class TestPersistent(SessionStoreContract):
    """A store that is opened again in each test."""

    def make_store(self) -> SessionStore:
        return Persistent()

    def reopen(self, store: SessionStore) -> SessionStore:
        assert isinstance(store, Persistent)
        return Persistent(store.kept)


# -- the broken ones ---------------------------------------------------------------------------------------------


class SharedByAll(Sound):
    everything: ClassVar[dict[str, Kept]] = {}

    def __init__(self) -> None:
        self.kept = self.everything


class ForgetsWhenReopened(Sound):
    def reopened(self) -> SessionStore:
        return ForgetsWhenReopened()


class HandsOutOnce(Sound):
    def load(self, session_id: str) -> dict[str, Any] | None:
        value = self.kept.get(self.key(session_id))
        self.kept[self.key(session_id)] = '{}'
        return None if value is None else self.take_out(value)


class EmptyForMissing(Sound):
    def load(self, session_id: str) -> dict[str, Any] | None:
        return super().load(session_id) or {}


class MakesTheMissing(Sound):
    def load(self, session_id: str) -> dict[str, Any] | None:
        found = super().load(session_id)
        self.kept.setdefault(self.key(session_id), 'null')
        return found


class RaisesForMissing(Sound):
    def load(self, session_id: str) -> dict[str, Any] | None:
        found: dict[str, Any] = self.take_out(self.kept[self.key(session_id)])
        return found


class AlwaysThere(Sound):
    def exists(self, session_id: str) -> bool:
        return True


class AlwaysDeleted(Sound):
    def delete(self, session_id: str) -> bool:
        super().delete(session_id)
        return True


class Merges(Sound):
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        super().save(session_id, {**(self.load(session_id) or {}), **data})


class FirstOneStays(Sound):
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.kept.setdefault(self.key(session_id), self.put_in(session_id, data))


class LosesOnOverwrite(Sound):
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        if not self.delete(session_id):
            super().save(session_id, data)


class EmptyIsMissing(Sound):
    def exists(self, session_id: str) -> bool:
        return bool(self.load(session_id))


class DeletesInSilence(Sound):
    def delete(self, session_id: str) -> bool:
        return True if super().delete(session_id) else None  # type: ignore[return-value]


class DeletesEverything(Sound):
    def delete(self, session_id: str) -> bool:
        found = super().delete(session_id)
        self.kept.clear()
        return found


class ListsTheDeleted(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.listed: dict[str, None] = {}

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        super().save(session_id, data)
        self.listed[session_id] = None

    def list_sessions(self) -> list[str]:
        return sorted(self.listed)


class OnlyUnlists(ListsTheDeleted):
    def delete(self, session_id: str) -> bool:
        self.key(session_id)
        found = session_id in self.listed
        self.listed.pop(session_id, None)
        return found


class NeverDeletesEmpty(Sound):
    def delete(self, session_id: str) -> bool:
        return bool(self.load(session_id)) and super().delete(session_id)


class ListsAsSaved(Sound):
    def list_sessions(self) -> list[str]:
        return list(self.kept)


class ListsByUtf16(Sound):
    def list_sessions(self) -> list[str]:
        return sorted(self.kept, key=lambda name: name.encode('utf-16-be'))


class ListsTwice(Sound):
    def list_sessions(self) -> list[str]:
        return sorted([*self.kept, *self.kept])


class ListsAView(Sound):
    def list_sessions(self) -> list[str]:
        return dict(sorted(self.kept.items())).keys()  # type: ignore[return-value]


class ListsItsOwn(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        super().save(session_id, data)
        self.listed = sorted(self.kept)

    def delete(self, session_id: str) -> bool:
        found = super().delete(session_id)
        self.listed = sorted(self.kept)
        return found

    def list_sessions(self) -> list[str]:
        return self.listed


class TheSameObject(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        super().put_in(session_id, data)
        return data

    def take_out(self, value: Kept) -> Kept:
        return value


class CopiesOnlyOnTheWayOut(TheSameObject):
    def take_out(self, value: Kept) -> Kept:
        return copy.deepcopy(value)


class CopiesOnlyOnTheWayIn(TheSameObject):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return copy.deepcopy(super().put_in(session_id, data))


class CopiesOnlyTheTop(TheSameObject):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return dict(super().put_in(session_id, data))

    def take_out(self, value: Kept) -> Kept:
        return dict(value)


class IgnoresCase(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id).casefold()


class StripsIds(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id).strip(' ') or ' '


class IdsArePaths(Sound):
    def key(self, session_id: str) -> str:
        return posixpath.normpath(super().key(session_id))


class IdsAreNames(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id).replace('/', '_')


class StopsAtNul(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id).split('\0')[0]


class CutsLongIds(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id)[:255]


class ComposesIds(Sound):
    def key(self, session_id: str) -> str:
        return unicodedata.normalize('NFC', super().key(session_id))


class TakesAnEmptyId(Sound):
    def key(self, session_id: str) -> str:
        return super().key(session_id) if session_id != '' else ''


class ReplacesSurrogates(Sound):
    def key(self, session_id: str) -> str:
        return super().key(str(session_id).encode(errors='replace').decode())


class TurnsIdsIntoText(Sound):
    def key(self, session_id: str) -> str:
        return super().key(str(session_id))


class RefusesOnlyWhenSaving(Sound):
    def load(self, session_id: str) -> dict[str, Any] | None:
        return super().load(session_id) if session_id else None


class PlainJson(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return json.dumps(data)


class StrictJson(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return json.dumps(data, allow_nan=False)


class SortsKeys(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return json.dumps(json.loads(super().put_in(session_id, data)), sort_keys=True)


class WholeNumbersAreFloats(Sound):
    def take_out(self, value: Kept) -> Kept:
        return json.loads(value, parse_int=lambda digits: float(digits) if len(digits) < 15 else int(digits))


class Shallow(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        text = super().put_in(session_id, data)
        if text.count('{') > 90 and len(text) < 5000:
            raise RecursionError('maximum recursion depth exceeded')
        return text


class KeepsSurrogates(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        super().put_in(session_id, data)
        return json.dumps(data)


class RefusesSurrogates(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        super().put_in(session_id, data)
        json.dumps(data, ensure_ascii=False).encode()
        return json.dumps(data)


class RefusesInOtherWords(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        try:
            return super().put_in(session_id, data)
        except InvalidSession as error:
            raise ValueError(str(error)) from None


class RefusesWithoutAName(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        return super().put_in('it', data)


class RefusesWithoutAHint(Sound):
    def put_in(self, session_id: str, data: dict[str, Any]) -> Kept:
        try:
            return super().put_in(session_id, data)
        except InvalidSession as error:
            raise InvalidSession(session_id, str(error), '') from None


class ClearsFirst(Sound):
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.delete(session_id)
        super().save(session_id, data)


class WritesEverythingEachTime(Sound):
    """As one that reads a whole file, changes it and writes it back, without a lock."""

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        everything = dict(self.kept)
        time.sleep(0.001)
        everything[self.key(session_id)] = self.put_in(session_id, data)
        self.kept = everything


class TwoHalves(Sound):
    """As one that writes a session's messages one after the other."""

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        messages = data.get('messages', [])
        half = len(messages) // 2
        if session_id == 'shared' and half and super().exists(session_id):
            old = (super().load(session_id) or {})['messages']
            super().save(session_id, {'messages': messages[:half] + old[half:]})
            time.sleep(0.001)
        super().save(session_id, data)


NEW = 'test_a_new_store_is_empty'
SAVED = 'test_what_was_saved_is_loaded'
MISSING = 'test_a_missing_session_is_none'
AGAIN = 'test_saving_again_replaces'
DELETE = 'test_delete_says_whether_it_was_there'
ORDER = 'test_sessions_are_listed_in_order'
COPY = 'test_what_is_kept_is_a_copy'
IDS = 'test_different_ids_are_different_sessions'
NO_IDS = 'test_ids_that_no_session_can_have_are_refused'
JSON = 'test_any_json_is_kept'
SURROGATES = 'test_lone_surrogates_are_replaced'
NO_JSON = 'test_what_is_no_json_is_refused'
THREADS = 'test_threads_may_use_it_at_once'

BROKEN: list[tuple[Callable[[], Any], str, str]] = [
    (SharedByAll, NEW, 'listed and not there'),
    (ForgetsWhenReopened, SAVED, 'there and not listed'),
    (HandsOutOnce, SAVED, 'comes back as something else'),
    (EmptyForMissing, MISSING, 'load of a missing session is not None'),
    (MakesTheMissing, MISSING, 'delete of a missing session is not False|exists of a missing'),
    (RaisesForMissing, MISSING, 'b'),
    (AlwaysThere, MISSING, 'exists of a missing session is not False'),
    (AlwaysDeleted, MISSING, 'delete of a missing session is not False'),
    (IgnoresCase, MISSING, 'load of a missing session is not None'),
    (Merges, AGAIN, 'comes back as something else'),
    (FirstOneStays, AGAIN, 'comes back as something else'),
    (LosesOnOverwrite, AGAIN, 'there and not listed'),
    (EmptyIsMissing, AGAIN, "'a' does not exist"),
    (AlwaysDeleted, DELETE, 'delete of a session that is gone is not False'),
    (DeletesInSilence, DELETE, 'delete of a session that is gone is not False'),
    (DeletesEverything, DELETE, 'there and not listed'),
    (ListsTheDeleted, DELETE, 'listed and not there'),
    (OnlyUnlists, DELETE, 'a deleted session can be loaded'),
    (NeverDeletesEmpty, DELETE, 'delete of an empty session is not True'),
    (ListsAsSaved, ORDER, 'instead of'),
    (ListsByUtf16, ORDER, 'instead of'),
    (ListsTwice, ORDER, 'instead of'),
    (ListsAView, ORDER, 'returns no list'),
    (ListsItsOwn, ORDER, 'the one that the store keeps'),
    (TheSameObject, COPY, "the caller's later change"),
    (CopiesOnlyOnTheWayOut, COPY, "the caller's later change"),
    (CopiesOnlyOnTheWayIn, COPY, 'a change of what was loaded'),
    (CopiesOnlyTheTop, COPY, "the caller's later change"),
    (IgnoresCase, IDS, "'A' is taken for another session"),
    (StripsIds, IDS, "'  ' is taken for another session"),
    (IdsArePaths, IDS, "'a/' is taken for another session"),
    (IdsAreNames, IDS, "'_' is taken for another session"),
    (StopsAtNul, IDS, 'is taken for another session'),
    (CutsLongIds, IDS, "'x*' is taken for another session"),
    (ComposesIds, IDS, 'is taken for another session'),
    (TakesAnEmptyId, NO_IDS, "'' is not refused"),
    (ReplacesSurrogates, NO_IDS, r"'\\ud800' is not refused"),
    (TurnsIdsIntoText, NO_IDS, "b'1' is not refused"),
    (RefusesOnlyWhenSaving, NO_IDS, "'' is not refused"),
    (SortsKeys, JSON, 'kinds or order come back as something else'),
    (WholeNumbersAreFloats, JSON, 'kinds or order come back as something else'),
    (Shallow, JSON, 'recursion'),
    (KeepsSurrogates, SURROGATES, 'comes back as something else'),
    (RefusesSurrogates, SURROGATES, 'surrogates not allowed'),
    (PlainJson, NO_JSON, "NaN: 'a' is not refused"),
    (StrictJson, NO_JSON, 'NaN: refused by ValueError'),
    (RefusesInOtherWords, NO_JSON, 'instead of InvalidSession'),
    (RefusesWithoutAName, NO_JSON, 'does not name the session'),
    (RefusesWithoutAHint, NO_JSON, 'does not say what to do'),
    (ClearsFirst, NO_JSON, 'the old data is gone'),
    (WritesEverythingEachTime, THREADS, 'is not listed|cannot be deleted|there and not listed'),
    (TwoHalves, THREADS, 'a session of two halves'),
]


@pytest.mark.parametrize(
    ('broken', 'test', 'why'),
    BROKEN,
    ids=[f'{broken.__name__}-{test}' for broken, test, _ in BROKEN],
)
def test_a_broken_one_fails(broken: Callable[[], SessionStore], test: str, why: str) -> None:
    """A store that breaks one promise fails the test of that promise, and is told why."""

    class Contract(SessionStoreContract):
        def make_store(self) -> SessionStore:
            return broken()

        def reopen(self, store: SessionStore) -> SessionStore:
            return store.reopened() if isinstance(store, ForgetsWhenReopened) else store

    SharedByAll.everything.clear()
    with pytest.raises(Exception, match=why):
        getattr(Contract(), test)()


def test_every_promise_can_be_broken() -> None:
    """Each test of the suite is failed by one of these stores, so that none of them is empty."""
    tests = {name for name in dir(SessionStoreContract) if name.startswith('test_')}
    assert tests == {test for _, test, _ in BROKEN}
