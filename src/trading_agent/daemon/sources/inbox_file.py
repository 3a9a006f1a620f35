"""What a thing in a desk's inbox is: a trigger, a mistake to reject, or nothing to touch.

Only decides: it is given what lstat(2) shows and what the file holds, and touches no disk.
"""

import difflib
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Literal, Self

import msgspec

from trading_agent.errors import InvalidTrigger
from trading_agent.trigger import Priority, RefusalReason, Trigger

SOURCE = 'inbox'
OWN_FOLDERS = ('done', 'rejected')

_TEXT_ENDINGS = ('.txt', '.md')
_JSON_ENDING = '.json'
_UNFINISHED_ENDINGS = ('.tmp', '.part')
_BYTE_ORDER_MARK_SIZE = 3
_MEND = 'mend it and move it back into the inbox'

Kind = Literal['file', 'link', 'folder', 'pipe', 'socket', 'device']

_KINDS: dict[int, Kind] = {
    stat.S_IFREG: 'file',
    stat.S_IFLNK: 'link',
    stat.S_IFDIR: 'folder',
    stat.S_IFIFO: 'pipe',
    stat.S_IFSOCK: 'socket',
}


@dataclass(frozen=True)
class Found:
    """One thing in an inbox. Two that are equal are the same thing, unchanged.

    Attributes:
        name: Its name in the inbox.
        kind: What it is.
        device: The file system it is on.
        inode: Its number there.
        size: In bytes; 0 for what is neither a file nor a link.
        mtime_ns: When it was written last, in nanoseconds since the epoch; 0 likewise.
    """

    name: str
    kind: Kind
    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> Self:
        """Makes one from what lstat(2) or fstat(2) returned."""
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), 'device')
        if kind in ('file', 'link'):
            return cls(name, kind, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        return cls(name, kind, status.st_dev, status.st_ino, 0, 0)

    @property
    def is_movable(self) -> bool:
        """Whether it may be moved to `rejected/`: a file or a link. Anything else is left where it is."""
        return self.kind in ('file', 'link')


@dataclass(frozen=True)
class Rejection:
    """Why something in an inbox becomes no trigger.

    Attributes:
        reason: As in a receipt.
        error: What is wrong, in words.
        hint: What to do about it.
    """

    reason: RefusalReason
    error: str
    hint: str


def is_passed_over(found: Found) -> bool:
    """Returns whether it is none of the inbox's business: still being written, hidden, or the inbox's own folder."""
    name = found.name.lower()
    if name.startswith('.') or name.endswith(_UNFINISHED_ENDINGS):
        return True
    return found.name in OWN_FOLDERS and found.kind != 'file'


def rejection_unread(found: Found, max_size: int) -> Rejection | None:
    """Returns why it cannot be taken as far as can be told without opening it, or None.

    Args:
        found: What lies there.
        max_size: The longest text, in bytes as UTF-8.
    """
    if found.kind == 'link':
        return Rejection('invalid', f'{found.name!r} is a symbolic link', 'put a copy of the file there instead')
    if found.kind != 'file':
        return Rejection(
            'invalid',
            f'{found.name!r} is a {found.kind}: it is left where it is',
            'take it away; an inbox takes .txt, .md and .json files',
        )
    if _ending(found) not in (*_TEXT_ENDINGS, _JSON_ENDING):
        return Rejection(
            'invalid', f'{found.name!r} has an ending that is not taken', f'use .txt, .md or .json: {_MEND}'
        )
    if found.size > most_bytes(found, max_size):
        return _too_large(found, max_size)
    return None


def most_bytes(found: Found, max_size: int) -> int:
    """Returns how long a file may be, in bytes: in JSON each character of the text may be written as six."""
    if _ending(found) == _JSON_ENDING:
        return max_size * 6 + (64 << 10)
    return max_size + _BYTE_ORDER_MARK_SIZE


def derived_id(found: Found, content: bytes = b'') -> str:
    """Returns the id of the trigger that a file is.

    The same file has the same one, also after a restart; two that look alike have not. The device is left out, for
    its number may change when the machine is started again.
    """
    digest = hashlib.sha256()
    for part in (os.fsencode(found.name), str(found.inode).encode(), str(found.mtime_ns).encode(), content):
        digest.update(f'{len(part)}:'.encode() + part)
    return f'{SOURCE}-{digest.hexdigest()[:32]}'


def trigger_from(
    found: Found, content: bytes, *, desk: str, received_at: datetime, max_size: int
) -> Trigger | Rejection:
    """Returns the trigger that a file is, or why it is none.

    Args:
        found: The file.
        content: All that it holds.
        desk: The desk that the inbox belongs to.
        received_at: The time now, with a zone.
        max_size: The longest text, in bytes as UTF-8.
    """
    try:
        text = content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        return Rejection('invalid', f'{found.name!r} is not UTF-8 (byte {error.start})', f'save it as UTF-8: {_MEND}')
    document = _document(found, text) if _ending(found) == _JSON_ENDING else _Document(text=text)
    if isinstance(document, Rejection):
        return document
    try:
        trigger = Trigger(
            document.text,
            desk,
            id=derived_id(found, content) if document.id is None else document.id,
            source=SOURCE,
            priority=document.priority,
            received_at=received_at,
            not_before=document.not_before,
            expires_at=document.expires_at,
        )
    except InvalidTrigger as error:
        return Rejection('invalid', f'{found.name!r}: {error}', error.hint or _MEND)
    return _too_large(found, max_size) if len(trigger.text.encode()) > max_size else trigger


def rejection_by_desk(found: Found, reason: RefusalReason | None) -> Rejection:
    """Returns what to say of a file whose trigger the desk refused for good."""
    said = {
        'too_large': ('its text is too long', f'shorten it, or raise `max_trigger_size`: {_MEND}'),
        'expired': ('it had expired when it came', f'give it a later `expires_at`: {_MEND}'),
    }
    error, hint = said.get(reason or '', ('the desk cannot take it', _MEND))
    return Rejection(reason or 'invalid', f'{found.name!r}: {error}', hint)


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    id: str | None = None
    priority: Priority = 'feed'
    not_before: datetime | None = None
    expires_at: datetime | None = None


def _ending(found: Found) -> str:
    return PurePath(found.name).suffix.lower()


def _too_large(found: Found, max_size: int) -> Rejection:
    return Rejection(
        'too_large',
        f'{found.name!r} is too large: {found.size} bytes, where a text has at most {max_size}',
        f'shorten it, or raise `max_trigger_size`: {_MEND}',
    )


def _document(found: Found, text: str) -> _Document | Rejection:
    hint = f'a .json file holds one object, such as {{"text": "…"}}: {_MEND}'
    try:
        # The standard library's reader: it takes a lone surrogate, and says the line and column of a mistake.
        return msgspec.convert(json.loads(text), _Document)
    except msgspec.ValidationError as error:
        what, hint = _explained(str(error), hint)
    except json.JSONDecodeError as error:
        what = f'not JSON: {error}'
    except RecursionError:
        what = 'nested too deep'
    except ValueError as error:
        what = f'not usable: {error}'
    return Rejection('invalid', f'{found.name!r}: {what}', hint)


def _explained(message: str, hint: str) -> tuple[str, str]:
    """Turns msgspec's words, such as "… unknown field `x`" or "Expected … - at `$.text`", into ours."""
    what, _, at = message.partition(' - at ')
    keys = _Document.__struct_fields__
    unknown = re.fullmatch(r'Object contains unknown field `(.*)`', what, re.DOTALL)
    if unknown:
        near = difflib.get_close_matches(unknown[1], keys, 1, 0.5)
        meant = f'did you mean {near[0]!r}?' if near else f'the keys are {", ".join(keys)}:'
        return f'there is no key {unknown[1][:100]!r}', f'{meant} {_MEND}'
    place = at.strip('`').removeprefix('$').lstrip('.')
    return (f'`{place}`: ' if place else '') + what[:1].lower() + what[1:200], hint
