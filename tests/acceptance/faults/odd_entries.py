"""What can lie in an inbox: links, pipes, folders, files too large or changed while they are read, odd names."""

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from rude_clients import ODD_NAMES

SECRET = 'a secret that nobody may be told'  # noqa: S105 - none at all

Fate = Literal['taken', 'rejected', 'taken or rejected', 'left', 'passed over']
Put = Callable[[Path], object]


class Entry(NamedTuple):
    """Something in an inbox.

    Attributes:
        name: Its name, as bytes, for it may be no text.
        fate: What must become of it. What is left stays and is told; what is passed over stays and is not.
        put: Puts it there.
    """

    name: bytes
    fate: Fate
    put: Put


def _named(text: str) -> Put:
    return lambda path: path.write_text(text)


def _link(target: Path | str) -> Put:
    return lambda path: path.symlink_to(target)


def _sparse(path: Path) -> None:
    with path.open('wb') as file:
        file.truncate(1 << 30)


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f'/proc/self/fd/{folder}/{path.name}')
    finally:
        os.close(folder)
        listener.close()


def _unreadable(path: Path) -> None:
    path.write_text('nobody may read it')
    path.chmod(0)


def _rewritten(path: Path) -> None:
    """Writes and cuts a file again and again for a while."""

    def work() -> None:
        for number in range(400):
            with suppress(OSError):
                path.write_text('x' * (number * 37 % 5000))

    path.write_text('begun')
    threading.Thread(target=work, daemon=True).start()


def _renamed(path: Path) -> None:
    """Renames a file to and fro for a while."""
    other = path.with_name(f'.{path.name}')

    def work() -> None:
        for _ in range(400):
            with suppress(OSError):
                path.rename(other)
            with suppress(OSError):
                other.rename(path)

    path.write_text('renamed')
    threading.Thread(target=work, daemon=True).start()


def entries(outside: Path) -> list[Entry]:
    """Returns what can be put into an inbox.

    Args:
        outside: A folder out of the workspace, with a file `secret.txt`.
    """
    found = [
        Entry(b'link.txt', 'rejected', _link(outside / 'secret.txt')),
        Entry(b'passwd.txt', 'rejected', _link('/etc/passwd')),
        Entry(b'nowhere.txt', 'rejected', _link('/nowhere/at/all')),
        Entry(b'loop.txt', 'rejected', _link('loop.txt')),
        Entry(b'folder-link.txt', 'rejected', _link(outside)),
        Entry(b'link.json', 'rejected', _link('../../../trading-agent.lock')),
        Entry(b'pipe.txt', 'left', os.mkfifo),
        Entry(b'socket.txt', 'left', _socket),
        Entry(b'folder.txt', 'left', Path.mkdir),
        Entry(b'unreadable.txt', 'taken' if os.geteuid() == 0 else 'rejected', _unreadable),
        Entry(b'large.txt', 'rejected', _sparse),
        Entry(b'large.json', 'rejected', _sparse),
        Entry(b'rewritten.txt', 'taken or rejected', _rewritten),
        Entry(b'renamed.txt', 'taken or rejected', _renamed),
        Entry(b'.hidden.txt', 'passed over', _named('hidden')),
        Entry(b'..txt', 'passed over', _named('hidden')),
        Entry(b'unfinished.tmp', 'passed over', _named('not yet')),
        Entry(b'unfinished.PART', 'passed over', _named('not yet')),
        Entry(b'no ending', 'rejected', _named('what is it?')),
        Entry(b'program.sh', 'rejected', _named('#!/bin/sh\n')),
        Entry(b'LOUD.TXT', 'taken', _named('loud')),
        Entry(b'new\nline.txt', 'taken', _named('a new line in the name')),
        Entry(b'\xff\xfe\x80.txt', 'taken', _named('a name that is no text')),
        Entry(b'x' * 251 + b'.txt', 'taken', _named('a long name')),
        Entry('₹'.encode() * 83 + b'.md', 'taken', _named('a long name')),
        Entry(b'-rf.txt', 'taken', _named('an option')),
        Entry(b'$(touch planted).txt', 'taken', _named('a command')),
        Entry(b'\xe2\x80\xa8.txt', 'taken', _named('a line separator')),
        Entry(b' .txt', 'taken', _named('a space')),
        Entry(b'nul.txt', 'taken', _named('a\0b')),
        Entry(b'blank.txt', 'rejected', _named(' \n\t\u2028')),
        Entry(b'deep.json', 'rejected', _named('{"text": ' + '[' * 200_000 + ']' * 200_000 + '}')),
        Entry(b'number.json', 'rejected', _named('{"text": 1e999}')),
        Entry(b'desk.json', 'rejected', _named('{"text": "x", "desk": "../../etc"}')),
        Entry(b'late.json', 'rejected', _named('{"text": "x", "expires_at": "2001-01-01T00:00:00Z"}')),
        Entry(b'never.json', 'taken', _named('{"text": "x", "not_before": "9999-12-31T23:59:59Z"}')),
    ]
    for number, name in enumerate(ODD_NAMES):
        is_id = 1 <= len(name) <= 128 and name.isprintable()
        text = json.dumps({'text': f'the odd id {number}', 'id': name})
        found.append(Entry(b'id-%d.json' % number, 'taken' if is_id else 'rejected', _named(text)))
    return found


def put(inbox: Path, chosen: Sequence[Entry]) -> None:
    """Puts things into an inbox."""
    for entry in chosen:
        entry.put(inbox / os.fsdecode(entry.name))


def take_away(inbox: Path, chosen: Sequence[Entry]) -> None:
    """Removes what stays there."""
    for entry in chosen:
        path = inbox / os.fsdecode(entry.name)
        if os.path.lexists(path):
            is_folder = stat.S_ISDIR(path.lstat().st_mode)
            path.rmdir() if is_folder else path.unlink()
