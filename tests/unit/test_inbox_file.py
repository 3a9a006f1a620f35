"""What a file in an inbox is, decided without a disk."""

import json
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.daemon.sources.inbox_file import (
    Found,
    Rejection,
    derived_id,
    is_passed_over,
    most_bytes,
    rejection_by_desk,
    rejection_unread,
    trigger_from,
)
from trading_agent.trigger import Trigger

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)


def a_file(name: str = 'alert.txt', size: int = 5) -> Found:
    """A file as lstat(2) would show it."""
    return Found(name, 'file', device=1, inode=77, size=size, mtime_ns=1_000)


def taken(name: str, content: bytes, max_size: int = 1000) -> Trigger | Rejection:
    """What becomes of a file that holds `content`."""
    return trigger_from(a_file(name), content, desk='main', received_at=NOON, max_size=max_size)


def trigger(name: str, content: bytes, max_size: int = 1000) -> Trigger:
    """The trigger that it becomes; anything else fails the test."""
    outcome = taken(name, content, max_size)
    assert isinstance(outcome, Trigger), outcome
    return outcome


def rejection(name: str, content: bytes, max_size: int = 1000) -> Rejection:
    """The rejection that it becomes; anything else fails the test."""
    outcome = taken(name, content, max_size)
    assert isinstance(outcome, Rejection), outcome
    return outcome


@pytest.mark.parametrize('name', ['.hidden.txt', 'a.tmp', 'a.txt.TMP', 'a.part', 'a.Part', '.a.txt.1f.tmp'])
def test_an_unfinished_or_hidden_file_is_passed_over(name: str) -> None:
    """A leading dot, `.tmp` and `.part` in any case are none of the inbox's business."""
    assert is_passed_over(a_file(name))


def test_only_the_own_folders_are_passed_over_by_name() -> None:
    """`done` and `rejected` are passed over, but not a file of that name nor a folder of another."""
    assert is_passed_over(replace(a_file('done'), kind='folder'))
    assert is_passed_over(replace(a_file('rejected'), kind='folder'))
    assert not is_passed_over(a_file('done'))
    assert not is_passed_over(replace(a_file('doner'), kind='folder'))


@pytest.mark.parametrize('name', ['a.txt', 'A.TXT', 'b.md', 'b.Md', 'c.json', 'c.JSON', 'a.tmp.txt'])
def test_known_endings_are_taken_in_any_case(name: str) -> None:
    """`.txt`, `.md` and `.json` are opened, whatever the case of the letters."""
    assert not is_passed_over(a_file(name))
    assert rejection_unread(a_file(name), 1000) is None


@pytest.mark.parametrize('name', ['a.pdf', 'a', 'a.txt.gz', 'a.txt.reason', 'done'])
def test_another_ending_is_rejected_with_the_right_ones(name: str) -> None:
    """A file with another ending is told by its name, with the endings that are taken."""
    unread = rejection_unread(a_file(name), 1000)
    assert unread is not None
    assert unread.reason == 'invalid'
    assert repr(name) in unread.error
    assert '.txt, .md or .json' in unread.hint


@pytest.mark.parametrize(
    ('mode', 'kind', 'movable'),
    [
        (stat.S_IFLNK, 'link', True),
        (stat.S_IFDIR, 'folder', False),
        (stat.S_IFIFO, 'pipe', False),
        (stat.S_IFSOCK, 'socket', False),
        (stat.S_IFCHR, 'device', False),
        (stat.S_IFBLK, 'device', False),
    ],
)
def test_what_is_no_file_is_rejected_unopened(mode: int, kind: str, movable: bool) -> None:  # noqa: FBT001
    """A link, folder, pipe, socket or device named like a text is rejected; only the link may be moved."""
    found = Found.of('a.txt', os.stat_result((mode | 0o644, 5, 1, 1, 0, 0, 9, 0, 0, 0)))
    assert found.kind == kind
    assert found.is_movable == movable
    unread = rejection_unread(found, 1000)
    assert unread is not None
    assert unread.reason == 'invalid'


def test_a_folder_that_is_filled_is_still_the_same() -> None:
    """The size and time of what is no file do not count, so that it is told once."""
    before = Found.of('x', os.stat_result((stat.S_IFDIR, 5, 1, 1, 0, 0, 9, 0, 10, 0)))
    after = Found.of('x', os.stat_result((stat.S_IFDIR, 5, 1, 1, 0, 0, 999, 0, 20, 0)))
    assert before == after


def test_size_is_judged_before_reading() -> None:
    """A text may be as long as the limit and a byte order mark; JSON six times that and something for its keys."""
    assert rejection_unread(a_file('a.txt', 1003), 1000) is None
    unread = rejection_unread(a_file('a.txt', 1004), 1000)
    assert unread is not None
    assert unread.reason == 'too_large'
    assert '1004' in unread.error
    assert most_bytes(a_file('a.json'), 1000) == 6000 + 65536
    assert rejection_unread(a_file('a.json', 6000 + 65536), 1000) is None
    assert rejection_unread(a_file('a.json', 6000 + 65537), 1000) is not None


def test_a_text_is_told_as_it_stands() -> None:
    """The content of a `.txt` or `.md` file is the text, its spaces and newlines kept, from the inbox, as a feed."""
    found = trigger('a.md', b'# Alert\r\n\n INFY +2% \n')
    assert found.text == '# Alert\r\n\n INFY +2% \n'
    assert (found.desk, found.source, found.priority, found.received_at) == ('main', 'inbox', 'feed', NOON)
    assert (found.not_before, found.expires_at) == (None, None)


def test_a_byte_order_mark_is_dropped() -> None:
    """The mark that Windows editors put in front becomes no part of the text, nor breaks JSON."""
    assert trigger('a.txt', b'\xef\xbb\xbfhello').text == 'hello'
    assert trigger('a.json', b'\xef\xbb\xbf{"text": "hello"}').text == 'hello'


def test_the_limit_is_of_the_text_not_of_the_file() -> None:
    """A byte order mark and JSON escapes do not count against the limit, and what is longer is too large."""
    assert trigger('a.txt', b'\xef\xbb\xbf' + b'x' * 1000).text == 'x' * 1000
    assert trigger('a.json', json.dumps({'text': '\u20b9' * 333}).encode()).text == '\u20b9' * 333
    assert rejection('a.txt', b'x' * 1001).reason == 'too_large'
    assert rejection('a.json', json.dumps({'text': '\u20b9' * 334}).encode()).reason == 'too_large'


@pytest.mark.parametrize('name', ['a.txt', 'a.json'])
def test_other_bytes_than_utf8_are_rejected(name: str) -> None:
    """Bytes that are not UTF-8 are rejected with the place of the first, and never guessed at."""
    refused = rejection(name, 'caf\u00e9'.encode('latin-1'))
    assert refused.reason == 'invalid'
    assert 'not UTF-8 (byte 3)' in refused.error
    assert 'save it as UTF-8' in refused.hint


@pytest.mark.parametrize('content', [b'', b' \n\t', b'\xef\xbb\xbf'])
def test_a_blank_text_is_rejected(content: bytes) -> None:
    """A file that says nothing is rejected."""
    refused = rejection('a.txt', content)
    assert 'blank' in refused.error
    assert refused.hint


def test_json_with_everything() -> None:
    """Each key of a JSON file reaches the trigger; times are converted to UTC."""
    found = trigger(
        'a.json',
        json.dumps(
            {
                'text': 'look at INFY',
                'id': 'nse-4711',
                'priority': 'person',
                'not_before': '2026-10-19T15:10:00+05:30',
                'expires_at': '2026-10-19T10:00:00Z',
            }
        ).encode(),
    )
    assert (found.text, found.id, found.priority) == ('look at INFY', 'nse-4711', 'person')
    assert found.not_before == datetime(2026, 10, 19, 9, 40, tzinfo=UTC)
    assert found.expires_at == datetime(2026, 10, 19, 10, 0, tzinfo=UTC)
    assert found.not_before.utcoffset() == timedelta(0)
    assert found.source == 'inbox'


@pytest.mark.parametrize(
    ('content', 'said', 'advice'),
    [
        ('{"text": "a", "prioritty": "feed"}', "'prioritty'", "did you mean 'priority'?"),
        ('{"text": "a", "zzzz": 1}', "'zzzz'", 'the keys are text, id, priority, not_before, expires_at'),
        ('{"id": "a"}', 'text', 'mend it'),
        ('{"text": 5}', '`text`', 'mend it'),
        ('{"text": null}', '`text`', 'mend it'),
        ('{"text": "a", "priority": "urgent"}', '`priority`', 'mend it'),
        ('{"text": "a", "id": ""}', 'id', 'mend it'),
        ('{"text": "a", "id": 7}', '`id`', 'mend it'),
        ('{"text": "a", "not_before": "2026-10-19T15:10:00"}', 'not_before', '2026-10-19T15:10:00+05:30'),
        ('{"text": "a", "expires_at": "soon"}', '`expires_at`', 'mend it'),
        ('{"text": "a", "expires_at": 1790000000}', '`expires_at`', 'mend it'),
        ('["text"]', 'array', 'mend it'),
        ('{"text": "a"', 'not JSON', '{"text": "…"}'),
        ('', 'not JSON', '{"text": "…"}'),
        ('[' * 100_000, 'nested too deep', 'mend it'),
    ],
)
def test_a_mistake_in_json_is_told(content: str, said: str, advice: str) -> None:
    """What is wrong in a JSON file is told with the file, the key and what to do about it."""
    refused = rejection('a.json', content.encode())
    assert refused.reason == 'invalid'
    assert refused.error.startswith("'a.json'")
    assert said in refused.error
    assert advice in refused.hint
    assert len(refused.error) < 500


def test_a_lone_surrogate_in_json_is_storable() -> None:
    """An escape that is no character becomes U+FFFD, as everywhere."""
    assert trigger('a.json', b'{"text": "a\\ud800b"}').text == 'a\ufffdb'
    for content in (b'{"text": "a", "\\ud800": 1}', b'{"text": "a", "priority": "\\ud800"}'):
        assert rejection('a.json', content).error.encode()


def test_the_same_file_has_the_same_id() -> None:
    """The id is made from name, content, inode and time of writing alone, so that a restart finds the same one."""
    first = trigger('a.txt', b'hello')
    assert first.id == trigger('a.txt', b'hello').id
    assert first.id == derived_id(replace(a_file('a.txt'), device=99), b'hello')
    assert first.id.startswith('inbox-')
    assert len(first.id) == len('inbox-') + 32


def test_two_files_that_look_alike_have_two_ids() -> None:
    """Another name, inode, time of writing or content is another trigger."""
    found = a_file('a.txt')
    ids = {
        derived_id(found, b'hello'),
        derived_id(found, b'hello!'),
        derived_id(replace(found, name='b.txt'), b'hello'),
        derived_id(replace(found, inode=78), b'hello'),
        derived_id(replace(found, mtime_ns=1_001), b'hello'),
        # What stands beside each other does not run into one another.
        derived_id(replace(found, inode=771, mtime_ns=1), b'hello'),
        derived_id(replace(found, inode=77, mtime_ns=11), b'hello'),
    }
    assert len(ids) == 7


def test_a_name_that_is_no_utf8_has_an_id() -> None:
    """A file name may be any bytes; what is said of it can be written."""
    found = a_file(os.fsdecode(b'caf\xe9.txt'))
    assert derived_id(found, b'x').startswith('inbox-')
    unread = rejection_unread(replace(found, kind='link'), 10)
    assert unread is not None
    assert unread.error.encode()


@pytest.mark.parametrize('reason', ['too_large', 'invalid', 'expired', 'unknown_desk'])
def test_a_refusal_by_the_desk_is_explained(reason: str) -> None:
    """Each refusal for good has words of its own and something to do."""
    told = rejection_by_desk(a_file(), reason)  # type: ignore[arg-type]
    assert told.reason == reason
    assert "'alert.txt'" in told.error
    assert 'move it back' in told.hint


@given(name=st.sampled_from(['a.txt', 'a.md', 'a.json']), content=st.binary(max_size=200))
def test_any_bytes_are_a_trigger_or_a_rejection(name: str, content: bytes) -> None:
    """Whatever a file holds, it is decided upon, and what is said of it can be written."""
    outcome = taken(name, content)
    if isinstance(outcome, Rejection):
        assert outcome.error.encode()
        assert outcome.hint
    else:
        assert outcome.text.strip()


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(['text', 'id', 'priority', 'not_before', 'expires_at', 'x']) | st.text(max_size=3),
                inner,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_trigger_or_a_rejection(document: object) -> None:
    """Whatever JSON a file holds, it is decided upon."""
    outcome = taken('a.json', json.dumps(document).encode())
    assert isinstance(outcome, Trigger | Rejection)
