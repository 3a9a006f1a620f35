"""Small files that are read as one whole, and files of records behind a header that says their format."""

import hashlib
from collections.abc import Callable
from datetime import datetime
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

from trading_agent.audit.findings import FileReport, Kind
from trading_agent.audit.reader import UNREADABLE, Reader, why_not
from trading_agent.errors import StorageError
from trading_agent.memory.day_notes import Note
from trading_agent.memory.memory_history import MemoryChange
from trading_agent.memory.record_file import FORMAT_VERSION
from trading_agent.memory.session_state import is_session_id
from trading_agent.memory.skill_folder import FaultySkill, SkillRefused, scan
from trading_agent.memory.skill_ledger import SkillRecord, read_proposal

T = TypeVar('T')


class _Version(msgspec.Struct, frozen=True):
    version: int = FORMAT_VERSION


class _Header(msgspec.Struct, frozen=True, tag='header', tag_field='type'):
    version: int


class _Hold(msgspec.Struct, frozen=True):
    """`paused.json`."""

    at: datetime
    by: str
    reason: str = ''


class _Disabled(msgspec.Struct, frozen=True):
    """`disabled-backends.json`."""

    backends: dict[str, _Hold]


def document(
    reader: Reader, path: str, kind: Kind, of: type[T], consequence: str = ''
) -> tuple[FileReport, T | None] | None:
    """Reads a JSON file, and writes down what is wrong with it.

    Args:
        reader: Reads files.
        path: The file, within the workspace.
        kind: What it is.
        of: What it is to hold.
        consequence: What comes of it where it is damaged, in words.

    Returns:
        What was found in it, and what it holds, or None for one that is damaged; None where there is none.
    """
    found = reader.content(path, kind)
    return None if found is None else (found[0], decoded(*found, of, consequence))


def decoded(report: FileReport, data: bytes, of: type[T], consequence: str = '') -> T | None:
    """Returns what a JSON file holds; what is wrong with it is written down as `document` does."""
    try:
        version = msgspec.json.decode(data, type=_Version).version if data.lstrip()[:1] == b'{' else FORMAT_VERSION
        if version > FORMAT_VERSION:
            report.is_newer(version, FORMAT_VERSION)
            return None
        value: T = msgspec.json.decode(data, type=of)
    except UNREADABLE as error:
        report.problem(f'is damaged: {why_not(error)}' + (f'; {consequence}' if consequence else ''))
        return None
    report.records = 1
    return value


def text(reader: Reader, path: str, kind: Kind) -> tuple[FileReport, str] | None:
    """Reads a file of text; the line of the first byte that is not UTF-8 is written down. None where there is none."""
    found = reader.content(path, kind)
    if found is None:
        return None
    report, data = found
    report.records = 1
    try:
        data.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        # The codec does not count the byte order mark.
        at = error.start + (3 if data.startswith(b'\xef\xbb\xbf') else 0)
        line, offset = data.count(b'\n', 0, at) + 1, data.rfind(b'\n', 0, at) + 1
        report.problem(f'has a byte that is not UTF-8, 0x{data[at]:02x}', line, offset)
    return report, data.decode('utf-8-sig', errors='replace')


def record_file(reader: Reader, path: str, kind: Kind, of: type[T]) -> list[tuple[int, int, T]]:
    """Reads a file of records, and writes down what is wrong with it.

    Returns:
        Each record with the number and the offset of its line.
    """
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(_Header | of).decode
    found: list[tuple[int, int, T]] = []
    with reader.open(path, kind) as opened:
        if opened is None:
            return found
        report, file = opened
        for number, offset, _, record in reader.records(report, file, decode):
            if not isinstance(record, _Header):
                found.append((number, offset, record))
            elif record.version > FORMAT_VERSION:
                report.is_newer(record.version, FORMAT_VERSION)
                return []
            if report.records == 1 and not isinstance(record, _Header):
                report.problem('does not begin with a header', number, offset)
    report.settle()
    return found


class DeskDocuments:
    """What lies beside a desk's sessions: its memory, notes, skills, and the hold of a person.

    Args:
        reader: Reads files.
        desk: The desk.
    """

    def __init__(self, reader: Reader, desk: str) -> None:
        self._reader = reader
        self._folder = f'desks/{desk}'

    def read_all(self) -> None:
        """Reads them, and writes down what is wrong with them."""
        text(self._reader, f'{self._folder}/Memory.md', 'memory')
        self._read_history()
        self._read_notes()
        self._read_skills()
        hold = 'the desk is held all the same'
        document(self._reader, f'{self._folder}/paused.json', 'hold', _Hold, hold)

    def _read_history(self) -> None:
        folder = f'{self._folder}/memory_history'
        changes = record_file(self._reader, f'{folder}/ledger.jsonl', 'ledger', MemoryChange)
        digests: dict[str, str] = {}
        for name in self._reader.names(folder):
            found = self._reader.content(f'{folder}/{name}', 'memory') if name.endswith('.md') else None
            if found is not None:
                found[0].records = 1
                digests[name] = hashlib.sha256(found[1]).hexdigest()
        for line, offset, change in changes:
            digest = digests.get(change.kept)
            report = self._reader.reports.of(f'{folder}/ledger.jsonl', 'ledger')
            if digest is None:
                report.problem(f'the text that it names is missing: {PurePath(change.kept).name}', line, offset)
            elif digest != (change.after if change.kind == 'refused' else change.before):
                kept = self._reader.reports.of(f'{folder}/{change.kept}', 'memory')
                kept.problem(f'is not the text that line {line} of ledger.jsonl says')

    def _read_notes(self) -> None:
        folder = f'{self._folder}/notes'
        for name in self._reader.names(folder):
            if name.endswith('.jsonl') and is_session_id(name.removesuffix('.jsonl')):
                record_file(self._reader, f'{folder}/{name}', 'notes', Note)

    def _read_skills(self) -> None:
        folder = f'{self._folder}/skills'
        record_file(self._reader, f'{folder}/ledger.jsonl', 'ledger', SkillRecord)
        try:
            skills = scan(self._reader.workspace / self._folder)
        except StorageError as error:
            self._reader.reports.of(folder, 'folder').problem(str(error))
            skills = []
        for skill in skills:
            report = self._reader.reports.of(f'{folder}/{skill.name}/SKILL.md', 'skill')
            if isinstance(skill, FaultySkill):
                report.problem(f'cannot be used: {skill.error}')
            else:
                report.records = 1
        for name in self._reader.names(f'{folder}/.proposed'):
            if name.endswith('.json'):
                self._read_proposal(f'{folder}/.proposed/{name}', name.removesuffix('.json'))

    def _read_proposal(self, path: str, proposal: str) -> None:
        found = self._reader.content(path, 'proposal')
        if found is None:
            return
        report, data = found
        try:
            read_proposal(data, proposal)
        except SkillRefused as error:
            report.problem(str(error))
        else:
            report.records = 1


def read_disabled_backends(reader: Reader) -> None:
    """Reads which backends a person has taken out of use."""
    document(reader, 'disabled-backends.json', 'disabled_backends', _Disabled, 'the next start moves it aside')
