"""The contract of a store of sessions as tests."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from trading_agent.conversation.stores import InvalidSession, SessionStore

THREADS = 8
ROUNDS = 10

HISTORY = {
    'system': 'You watch NSE.',
    'messages': [{'role': 'user', 'content': 'Hello'}, {'role': 'assistant', 'content': [{'text': 'Good morning'}]}],
}

# Each is another session than every other one here.
ODD_IDS = (
    'a', 'A', 'ä', 'a\u0308', '\uff41', 'ß', 'ss', 'SS', '\u0131', 'i', 'I', 'İ',  # cases and forms
    ' ', '  ', 'a ', ' a', 'a\n', '\na', 'a\r', 'a\t', '\u00a0', '\u200b', '\ufeff', '\ufeffa',  # blanks
    'a\0', 'a\0b', '\0', '\0a', '\x7f', 'a\u2028', '\ufffd', '\uffff', '😀', '😀\u200d', '\U0010ffff',
    '/', 'a/', '/a', 'a/b', 'a//b', 'a\\b', '.', '..', '../a', './a', 'a.', 'a.json', '~', '~/a', 'C:a', 'con',  # paths
    "'", '"', '`', "a'; DROP TABLE sessions; --", "a' OR '1'='1", '%', '_', '*', 'a%', 'a_', 'a?', '[a]', '$a', '{a}',
    '1', '01', '1.0', '1e0', '+1', '-1', 'None', 'null', 'NaN', 'True', '%61', 'a%2Fb', 'a:b', 'a,b', '#a', '-a',
    'x' * 10_000, 'x' * 9_999 + 'y', 'y' + 'x' * 9_999,  # lengths
)  # fmt: skip

ODD_DATA: dict[str, dict[str, Any]] = {
    'nothing': {},
    'empty things': {'': '', 'list': [], 'object': {}, 'inside': [[], {}, [[]]]},
    'None, true and false': {'none': None, 'true': True, 'false': False, 'all': [None, True, False, 0, 1, '']},
    'numbers': {'numbers': [0, -1, 2**53 + 1, -(2**63), 2**64, 10**400, 0.1, 1.0, 5e-324, 1.7976931348623157e308]},
    'text': {'text': ''.join(map(chr, range(0x300))) + '\u2028\u2029\u202e\ufeff\ufffe\uffff😀\U0010ffff'},
    'quotes': {'text': '\'"`\\/ \\u0041 \\n %s {} ?1 :a @a $a --', "'; DROP TABLE sessions; --": "' OR '1'='1"},
    'keys': {'\0': 1, 'ä': 2, 'a\u0308': 3, '😀': 4, ' ': 5, 'a.b': 6, '$ref': 7, '__class__': 8, '1': 9, 'null': 10},
    'an order': {'z': 1, 'a': 2, 'm': {'z': 1, 'a': 2}},
    'a megabyte': {'text': 'Nifty ₹ ' * 100_000},
    'many messages': {'messages': [{'role': 'user', 'content': f'message {n}'} for n in range(2_000)]},
    'words of JSON': {'text': '{"a": [1, NaN]}', 'null': 'null', 'more': 'NaN Infinity true'},
}


def nested(depth: int) -> dict[str, Any]:
    """Returns data whose lists and dictionaries are `depth` deep."""
    data: Any = 'deep'
    for level in range(1, depth):
        data = {'in': data} if level % 2 else [data]
    return {'in': data}


def circular() -> dict[str, Any]:
    """Returns data that contains itself."""
    data: dict[str, Any] = {}
    data['self'] = [data]
    return data


NO_JSON: dict[str, Callable[[], Any]] = {
    'NaN': lambda: {'price': math.nan},
    'infinity': lambda: {'prices': [1.0, -math.inf]},
    'an object': lambda: {'messages': [{'content': object()}]},
    'a class': lambda: {'schema': dict},
    'bytes': lambda: {'image': b'GIF'},
    'a time': lambda: {'at': datetime(2026, 10, 19, tzinfo=UTC)},
    'a set': lambda: {'symbols': {'NIFTY'}},
    'a tuple, which would come back as a list': lambda: {'range': (1, 2)},
    'a key that is a number': lambda: {'by_id': {1: 'one'}},
    'a key that is None': lambda: {None: 'one'},
    'a key that is true': lambda: {'flags': {True: 'one'}},
    'two keys that JSON makes one': lambda: {'by_id': {1: 'one', '1': 'another'}},
    'two keys that U+FFFD makes one': lambda: dict.fromkeys('\ud800\udc00', 1),
    'nested without end': lambda: nested(100_000),
    'itself': circular,
    'a list': lambda: [{'role': 'user'}],
    'text': lambda: '{}',
    'None': lambda: None,
}


class SessionStoreContract:
    """What every store of sessions must do. Subclass it, name the class `Test…`, and say how to make one."""

    def make_store(self) -> SessionStore:
        """Returns a store of the kind under test: a new and empty one each time."""
        raise NotImplementedError

    def reopen(self, store: SessionStore) -> SessionStore:
        """Returns a store over what `store` has saved, as another process would open it.

        Leave this out where sessions end with the process.
        """
        return store

    def test_a_new_store_is_empty(self) -> None:
        """A new store has no sessions, whatever others of its kind have."""
        first = self.make_store()
        _hold(first, {})
        first.save('a', HISTORY)
        _hold(self.make_store(), {})
        _hold(first, {'a': HISTORY})

    def test_what_was_saved_is_loaded(self) -> None:
        """A session comes back as it was saved, as often as it is asked for, also when the store is opened again."""
        store = self.make_store()
        store.save(session_id='a', data=HISTORY)
        _hold(store, {'a': HISTORY})
        assert store.load(session_id='a') == HISTORY, 'the second time it comes back as something else'
        _hold(self.reopen(store), {'a': HISTORY})

    def test_a_missing_session_is_none(self) -> None:
        """Loading one that is not there returns None and makes none; neither exists nor delete find it."""
        store = self.make_store()
        store.save('a', HISTORY)
        for missing in ('b', 'A', 'a ', '%', '*'):
            assert store.load(missing) is None, 'load of a missing session is not None'
            assert store.exists(session_id=missing) is False, 'exists of a missing session is not False'
            assert store.delete(missing) is False, 'delete of a missing session is not False'
        _hold(store, {'a': HISTORY})

    def test_saving_again_replaces(self) -> None:
        """The data saved last is there, nothing of the old is left in it, and the other sessions stay."""
        store = self.make_store()
        store.save('a', HISTORY)
        store.save('b', HISTORY)
        others: list[dict[str, Any]] = [{'messages': []}, {'other': 1}, {}]
        for data in others:
            store.save('a', data)
            _hold(store, {'a': data, 'b': HISTORY})
        _hold(self.reopen(store), {'a': {}, 'b': HISTORY})

    def test_delete_says_whether_it_was_there(self) -> None:
        """Delete is True for a session that was there and False the next time; it is gone, and can be saved anew."""
        store = self.make_store()
        store.save('a', HISTORY)
        store.save('b', {})
        assert store.delete(session_id='a') is True, 'delete of a session is not True'
        _hold(store, {'b': {}})
        assert store.load('a') is None, 'a deleted session can be loaded'
        assert store.exists('a') is False, 'a deleted session exists'
        assert store.delete('a') is False, 'delete of a session that is gone is not False'
        store = self.reopen(store)
        assert store.load('a') is None, 'a deleted session can be loaded'
        store.save('a', {'again': True})
        assert store.delete('b') is True, 'delete of an empty session is not True'
        _hold(store, {'a': {'again': True}})

    def test_sessions_are_listed_in_order(self) -> None:
        """Every session is listed once, sorted by its id's code points, in whatever order they were saved."""
        store = self.make_store()
        for session_id in ('b', '😀', 'B', 'a', '\uffff', '10', '9', 'é', 'z', 'a'):
            store.save(session_id, {})
        store.delete('z')
        expected = ['10', '9', 'B', 'a', 'b', 'é', '\uffff', '😀']
        for opened in (store, self.reopen(store)):
            listed = opened.list_sessions()
            assert isinstance(listed, list), 'list_sessions returns no list'
            assert listed == expected, f'the list is {listed} instead of {expected}'
            listed.clear()
            assert opened.list_sessions() == expected, 'the list that was returned is the one that the store keeps'

    def test_what_is_kept_is_a_copy(self) -> None:
        """Changing what was saved, or what was loaded, changes nothing in the store."""
        store = self.make_store()
        data = json.loads(json.dumps(HISTORY))
        store.save('a', data)
        data['messages'][1]['content'].append('more')
        data['new'] = True
        assert store.load('a') == HISTORY, "the caller's later change of the data is in the store"
        loaded = store.load('a') or {}
        loaded['messages'][0]['content'] = 'Goodbye'
        del loaded['system']
        assert store.load('a') == HISTORY, 'a change of what was loaded is in the store'

    def test_different_ids_are_different_sessions(self) -> None:
        """Ids of any text are kept apart: case, blanks, NUL, paths, quotes, wildcards, forms and lengths."""
        store = self.make_store()
        kept = {session_id: {'number': number} for number, session_id in enumerate(ODD_IDS)}
        for session_id, data in kept.items():
            assert not store.exists(session_id), f'{session_id[:40]!r} is taken for another session'
            store.save(session_id, data)
        _hold(store, kept)
        store = self.reopen(store)
        _hold(store, kept)
        for session_id in ODD_IDS[::2]:
            assert store.delete(session_id) is True, f'{session_id[:40]!r} cannot be deleted'
            del kept[session_id]
        _hold(store, kept)

    def test_ids_that_no_session_can_have_are_refused(self) -> None:
        """An empty id, a lone surrogate and what is no text are refused by each method, and nothing is kept."""
        store = self.make_store()
        store.save('1', HISTORY)
        for session_id in ('', '\ud800', 'a\udc80b', '\ud83d\ude00', b'1', 1, None):
            odd: Any = session_id
            for method in (store.load, store.exists, store.delete):
                _refused(method, odd)
            _refused(store.save, odd, {})
        _hold(store, {'1': HISTORY})

    def test_any_json_is_kept(self) -> None:
        """Text, numbers, nesting and order of any data come back as they were, kinds of numbers included."""
        store = self.make_store()
        kept = {**ODD_DATA, 'nested': nested(200)}
        for name, data in kept.items():
            store.save(name, data)
            found = store.load(name)
            assert found == data, f'{name}: it comes back as something else'
            assert json.dumps(found) == json.dumps(data), f'{name}: kinds or order come back as something else'
        _hold(self.reopen(store), kept)

    def test_lone_surrogates_are_replaced(self) -> None:
        """A lone surrogate in the data comes back as U+FFFD, a pair of them as the character that it stands for."""
        store = self.make_store()
        store.save('a', {'text': 'x\ud800y', '\udfff': ['\udc80', '\ud83d', '\ude00'], 'pair': '\ud83d\ude00'})
        expected = {'text': 'x\ufffdy', '\ufffd': ['\ufffd', '\ufffd', '\ufffd'], 'pair': '😀'}
        _hold(store, {'a': expected})
        _hold(self.reopen(store), {'a': expected})

    def test_what_is_no_json_is_refused(self) -> None:
        """Data that would not come back as it is, is refused by name, and the old data stays."""
        store = self.make_store()
        store.save('a', HISTORY)
        for name, make in NO_JSON.items():
            for session_id in ('a', 'new'):
                _refused(store.save, session_id, make(), what=name)
            assert store.load('a') == HISTORY, f'{name}: the old data is gone'
        _hold(self.reopen(store), {'a': HISTORY})

    def test_threads_may_use_it_at_once(self) -> None:
        """Threads that save, load, list and delete side by side lose nothing and never see half a session."""
        store = self.make_store()
        store.save('shared', _version(0, 0))
        done = threading.Event()

        def write(thread: int) -> None:
            for number in range(ROUNDS):
                store.save(f'kept-{thread}-{number}', _version(thread, number))
                store.save('shared', _version(thread, number))
                store.save(f'gone-{thread}', {})
                assert f'gone-{thread}' in store.list_sessions(), 'a saved session is not listed'
                assert store.delete(f'gone-{thread}') is True, 'a saved session cannot be deleted'

        def read() -> None:
            while not done.is_set():
                seen = (store.load('shared') or {}).get('messages', [])
                assert len(seen) == 50, 'half a session was loaded'
                assert seen == [seen[0]] * 50, 'a session of two halves was loaded'

        with ThreadPoolExecutor(THREADS + 2) as threads:
            readers = [threads.submit(read) for _ in range(2)]
            try:
                list(threads.map(write, range(THREADS)))
            finally:
                done.set()
            for reader in readers:
                reader.result()
        kept = {f'kept-{thread}-{number}': _version(thread, number) for thread, number in _all_versions()}
        _hold(store, {**kept, 'shared': store.load('shared') or {}})


def _version(thread: int, number: int) -> dict[str, Any]:
    return {'messages': [f'{thread} {number}'] * 50}


def _all_versions() -> Iterator[tuple[int, int]]:
    return ((thread, number) for thread in range(THREADS) for number in range(ROUNDS))


def _hold(store: SessionStore, expected: dict[str, dict[str, Any]]) -> None:
    """Claims that a store has these sessions and no others."""
    listed = store.list_sessions()
    odd = sorted(set(listed) ^ set(expected))[:3]
    assert not odd, f'{[name[:40] for name in odd]} are listed and not there, or there and not listed'
    assert listed == sorted(expected), 'the list is not in order, or names a session twice'
    for session_id, data in expected.items():
        assert store.exists(session_id) is True, f'{session_id[:40]!r} does not exist'
        assert store.load(session_id) == data, f'{session_id[:40]!r} comes back as something else'


def _refused(method: Callable[..., object], session_id: object, *arguments: object, what: str = 'the id') -> None:
    """Claims that a call is refused by an error that names the session and says what to do."""
    told: Exception | None = None
    try:
        method(session_id, *arguments)
    except Exception as error:  # noqa: BLE001 - looked at below
        told = error
    assert told is not None, f'{what}: {session_id!r} is not refused'
    assert isinstance(told, InvalidSession), f'{what}: refused by {told!r} instead of InvalidSession'
    named = not isinstance(session_id, str) or repr(session_id) in str(told)
    assert named, f'{what}: the error does not name the session: {told}'
    assert told.hint, f'{what}: the error does not say what to do: {told}'
