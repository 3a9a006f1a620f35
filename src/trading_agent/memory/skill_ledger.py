"""What was done to a desk's skills, and what is proposed: records that everything can be taken back by."""

import hashlib
import re
from collections.abc import Iterable
from datetime import date
from typing import Literal

import msgspec

from trading_agent.memory.skill_folder import SkillRefused, checked_name, digest_of

FORMAT_VERSION = 1
SkillChange = Literal['create', 'revise', 'archive']
Mode = Literal['propose', 'apply']
RecordKind = Literal['proposed', 'applied', 'rejected', 'reverted']
Key = tuple[SkillChange, str, str, str]
_ID = re.compile(r'\d{4}-\d{2}-\d{2}-[0-9a-f]{8}(?:\.r[1-9]\d{0,3})*', re.ASCII)


class Proposal(msgspec.Struct, frozen=True):
    """A change to a skill that is proposed.

    Attributes:
        id: Made from the day and from what is proposed, so that the same is proposed once on one day.
        at: When, as an ISO 8601 string in UTC.
        action: What is to be done.
        name: The skill.
        text: The whole new `SKILL.md`; empty for an archiving.
        base: The digest of the `SKILL.md` that it is about; empty for a new skill.
        reason: Why.
        mode: `apply` where it is to be done at once, so that the next review does it after a crash.
        version: The format of the file.
    """

    id: str
    at: str
    action: SkillChange
    name: str
    text: str
    base: str
    reason: str
    mode: Mode = 'propose'
    version: int = FORMAT_VERSION

    @property
    def after(self) -> str:
        """The digest of the new `SKILL.md`; empty where there is to be none."""
        return digest_of(self.text.encode()) if self.text else ''

    @property
    def key(self) -> Key:
        """What is proposed, whenever it is."""
        return self.action, self.name, self.base, self.after


def proposal_id(trading_date: date, action: str, name: str, base: str, after: str) -> str:
    """Returns the id of a proposal."""
    digest = hashlib.sha256(f'{action}\n{name}\n{base}\n{after}'.encode()).hexdigest()
    return f'{trading_date.isoformat()}-{digest[:8]}'


class SkillRecord(msgspec.Struct, frozen=True, tag='skill', tag_field='type', omit_defaults=True):
    """One line of `skills/ledger.jsonl`.

    Attributes:
        at: When, as an ISO 8601 string in UTC.
        id: The proposal's id; of something that was reverted, that with `.r1` behind it.
        kind: What was done with the proposal.
        action: What the change is.
        name: The skill.
        before: The digest of the `SKILL.md` before, empty where there was none.
        after: The digest of the one after, empty where there is none.
        by: `curator`, or who.
        why: The reason.
        of: The id of what was reverted.
    """

    at: str
    id: str
    kind: RecordKind
    action: SkillChange
    name: str
    before: str = ''
    after: str = ''
    by: str = ''
    why: str = ''
    of: str = ''


def is_change_id(text: str) -> bool:
    """Returns whether a text looks like the id of a change."""
    return bool(_ID.fullmatch(text))


def checked_id(text: str) -> str:
    """Returns an id.

    Raises:
        SkillRefused: It is none; a path, for example.
    """
    if not is_change_id(text):
        raise SkillRefused(f'{text[:80]!r} is no id of a change', 'an id is like 2026-10-19-1a2b3c4d')
    return text


def read_proposal(data: bytes, proposal: str) -> Proposal:
    """Reads a proposal's file.

    Raises:
        SkillRefused: It is damaged, of a newer version, or not what its name says.
    """
    try:
        found = msgspec.json.decode(data, type=Proposal)
    except (ValueError, RecursionError) as error:
        raise SkillRefused(f'the proposal {proposal} cannot be read: {error}', 'move its file away') from error
    if found.version > FORMAT_VERSION:
        raise SkillRefused(
            f'the proposal {proposal} has format {found.version}, and this program knows up to {FORMAT_VERSION}',
            'install the newer version of trading-agent again; nothing was changed',
        )
    if found.id != proposal:
        raise SkillRefused(f'the proposal {proposal} calls itself {found.id[:80]!r}', 'move its file away')
    checked_name(found.name)
    return found


def turned_down(records: Iterable[SkillRecord]) -> dict[Key, SkillRecord]:
    """Returns what a person did not want: what was rejected, and what was reverted after it was done."""
    found: dict[Key, SkillRecord] = {}
    for record in records:
        if record.kind == 'rejected':
            found[record.action, record.name, record.before, record.after] = record
        elif record.kind == 'reverted':
            # It went the other way round.
            found[record.action, record.name, record.after, record.before] = record
    return found
