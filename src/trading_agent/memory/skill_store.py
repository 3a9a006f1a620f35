"""Changes a desk's skills so that each change survives a crash whole, is written down, and can be taken back.

    skills/<name>/SKILL.md            the skills
    skills/.proposed/<id>.json        what waits for a person; in `done/` what was approved or rejected
    skills/.archive/<name>/<id>/      what the change of that id replaced or archived
    skills/ledger.jsonl               what was done, with digests before and after, by whom and why

A change keeps the old text, puts the new one in place, writes its record, and then puts the proposal away: wherever
that is cut off, the same call done again goes on from there.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trading_agent import files
from trading_agent.clock import utc_text
from trading_agent.errors import TradingAgentError
from trading_agent.memory.damage import Damage, DamageReport
from trading_agent.memory.record_file import RecordFile
from trading_agent.memory.skill_folder import SkillRefused, digest_of, is_folder, regular_file, skill_data
from trading_agent.memory.skill_ledger import (
    Proposal,
    RecordKind,
    SkillRecord,
    checked_id,
    is_change_id,
    read_proposal,
    turned_down,
)
from trading_agent.trigger import storable


class StaleChange(TradingAgentError):
    """Raised when a skill is no longer what a change was made for: somebody changed it since. Nothing was done."""


class SkillStore:
    """One desk's skills. All methods block on the disk; several processes may use it.

    Args:
        folder: The desk's folder.
        now: Returns the time.
        on_damage: Is told of each line of the ledger, and of each proposal, that cannot be read, once; None logs it.
    """

    def __init__(
        self,
        folder: Path,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        self.folder = folder
        self._skills = folder / 'skills'
        self._proposed = self._skills / '.proposed'
        self._archive = self._skills / '.archive'
        self._damage = DamageReport(on_damage)
        self._ledger = RecordFile(self._skills / 'ledger.jsonl', SkillRecord, self._damage)
        self._now = now

    # -- what is there -----------------------------------------------------------------------------------------

    def records(self) -> list[SkillRecord]:
        """Returns what was done, oldest first.

        Raises:
            SkillRefused: A link stands in a folder's place.
            StorageError: It cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        return self._ledger.read() if is_folder(self._skills) else []

    def proposals(self) -> list[Proposal]:
        """Returns what waits for a person, oldest first. What cannot be understood is left out and told.

        Raises:
            SkillRefused: A link stands in a folder's place.
            StorageError: It cannot be read.
        """
        found = []
        if self._has_folder(self._proposed):
            for proposal_id in (name.removesuffix('.json') for name in files.names_in(self._proposed)):
                if is_change_id(proposal_id):
                    try:
                        found.append(self.proposal(proposal_id))
                    except SkillRefused as error:
                        self._damage.tell(self._proposed / f'{proposal_id}.json', None, error.in_words)
        return sorted(found, key=lambda proposal: (proposal.at, proposal.id))

    def proposal(self, proposal_id: str) -> Proposal:
        """Returns one of them.

        Raises:
            SkillRefused: There is none of that id, or it cannot be understood.
            StorageError: It cannot be read.
        """
        path = self._proposed / f'{checked_id(proposal_id)}.json'
        data = files.read(path) if self._has_folder(self._proposed) else None
        if data is None:
            known = [record for record in self.records() if record.id == proposal_id]
            if known:
                last = known[-1]
                raise SkillRefused(f'{proposal_id} was {last.kind} before, by {last.by}', 'nothing is left to be done')
            raise SkillRefused(f'there is no proposal {proposal_id}', self._see)
        return read_proposal(data, proposal_id)

    def is_stale(self, proposal: Proposal) -> bool:
        """Returns whether somebody has changed the skill since a change of it was proposed."""
        return self._digest(proposal.name) not in (proposal.base, proposal.after)

    def _digest(self, name: str) -> str:
        data = skill_data(self.folder, name)
        return '' if data is None else digest_of(data)

    @property
    def _see(self) -> str:
        return f'see `trading-agent skills {self.folder.name}`'

    # -- changes -----------------------------------------------------------------------------------------------

    def propose(self, proposal: Proposal, by: str) -> bool:
        """Writes down a change that waits for a person, durably.

        Returns:
            Whether it waits; False where the same waits already, or was turned down or done before.

        Raises:
            SkillRefused: A link stands in a folder's place.
            StorageError: It could not be written.
        """
        records, waiting = self.records(), self.proposals()
        if all(other.id != proposal.id for other in waiting):
            done = {record.id for record in records if record.kind != 'proposed'}
            if proposal.id in done or proposal.key in {*turned_down(records), *(other.key for other in waiting)}:
                return False
            self._make_folder(self._proposed)
            data = msgspec.json.format(msgspec.json.encode(proposal)) + b'\n'
            files.replace(self._proposed / f'{checked_id(proposal.id)}.json', data)
        self._record(proposal, 'proposed', by)
        return True

    def approve(self, proposal_id: str, by: str) -> Proposal:
        """Makes a change that was proposed.

        Raises:
            SkillRefused: There is none of that id, or a link stands in a folder's place.
            StaleChange: Somebody has changed the skill since.
            StorageError: It could not be written: the skill is as it was, or whole as it is to be; call again.
        """
        proposal = self.proposal(proposal_id)
        if self._digest(proposal.name) != proposal.after:
            self._change(proposal.name, proposal.id, proposal.base, proposal.after, proposal.text.encode())
        self._record(proposal, 'applied', by)
        self._put_away(proposal.id)
        return proposal

    def reject(self, proposal_id: str, by: str, why: str = '') -> Proposal:
        """Turns a change down that was proposed; its file is kept in `done/`.

        Raises:
            SkillRefused: There is none of that id, or a link stands in a folder's place.
            StorageError: It could not be written; call again.
        """
        proposal = self.proposal(proposal_id)
        self._record(proposal, 'rejected', by, why)
        self._put_away(proposal.id)
        return proposal

    def revert(self, record_id: str, by: str) -> SkillRecord:
        """Takes a change back: the skill is what it was before. That can be reverted in turn.

        Returns:
            The record of it.

        Raises:
            SkillRefused: No change of that id was made, or what it replaced is not there any more.
            StaleChange: Somebody has changed the skill since, or it was reverted already.
            StorageError: It could not be written; call again.
        """
        checked_id(record_id)
        records = [record for record in self.records() if record.kind in ('applied', 'reverted')]
        change = next((record for record in reversed(records) if record.id == record_id), None)
        if change is None:
            raise SkillRefused(f'no change {record_id} was made', self._see)
        present = self._digest(change.name)
        last = next(record for record in reversed(records) if record.name == change.name)
        if present == change.before == last.after:
            raise StaleChange(f'{record_id} was reverted before', 'nothing is left to be done')
        following = SkillRecord(
            utc_text(self._now()),
            f'{record_id}.r{1 + sum(record.of == record_id for record in records)}',
            'reverted',
            change.action,
            change.name,
            before=change.after,
            after=change.before,
            by=storable(by),
            of=record_id,
        )
        if present != change.before:  # else a crash came before its record
            text = self._archived(change.name, record_id, change.before) if change.before else b''
            self._change(change.name, following.id, change.after, change.before, text, back_from=record_id)
        self._ledger.append(following, lambda known: all(each.id != following.id for each in known))
        return following

    def _change(self, name: str, change_id: str, base: str, after: str, text: bytes, *, back_from: str = '') -> None:
        """Puts a skill from one text to another; an empty digest is no skill."""
        old = skill_data(self.folder, name)
        if ('' if old is None else digest_of(old)) != base:
            raise StaleChange(
                f'the skill {name} is no longer what {back_from or change_id} is about: somebody has changed it',
                f'nothing was done; compare {self._skills / name} with it, and change that by hand',
            )
        place, kept = self._skills / name, self._archive / name / checked_id(change_id)
        if not after:
            self._make_folder(self._archive / name)
            files.move(place, kept)
        elif not base and back_from:  # with all that was beside it
            files.move(self._archive / name / back_from, place)
        else:
            if old is not None:
                self._make_folder(kept)
                files.replace(kept / 'SKILL.md', old)
            self._make_folder(place)
            files.replace(place / 'SKILL.md', text, check=lambda now: _expect(now, base, name, change_id))

    def _archived(self, name: str, change_id: str, digest: str) -> bytes:
        folder = self._archive / name / change_id
        data = regular_file(folder / 'SKILL.md') if self._has_folder(folder) else None
        if data is None or digest_of(data) != digest:
            raise SkillRefused(f'{folder} does not have what {change_id} replaced', 'put the text back by hand')
        return data

    def _has_folder(self, path: Path) -> bool:
        """Returns whether a folder is there; a link anywhere on the way to it is refused."""
        inner = path.relative_to(self._skills)
        return all(is_folder(self._skills / part) for part in (*reversed(inner.parents), inner))

    def _make_folder(self, path: Path) -> None:
        self._has_folder(path)
        files.make_folder(path)

    def _record(self, proposal: Proposal, kind: RecordKind, by: str, why: str = '') -> None:
        record = SkillRecord(
            utc_text(self._now()),
            proposal.id,
            kind,
            proposal.action,
            proposal.name,
            before=proposal.base,
            after=proposal.after,
            by=storable(by),
            why=storable(why or proposal.reason),
        )
        self._ledger.append(record, lambda known: all((each.id, each.kind) != (record.id, kind) for each in known))

    def _put_away(self, proposal_id: str) -> None:
        self._make_folder(self._proposed / 'done')
        files.move(self._proposed / f'{proposal_id}.json', self._proposed / 'done' / f'{proposal_id}.json')

    def sweep(self) -> None:
        """Removes the temporary files that a killed writer left."""
        for path in [self._skills, *(self._skills / name for name in files.names_in(self._skills))]:
            with files.storage_errors('look at', path):
                is_own = path.is_dir() and not path.is_symlink()
            if is_own:
                files.sweep(path)


def _expect(present: bytes | None, base: str, name: str, change_id: str) -> None:
    if ('' if present is None else digest_of(present)) != base:
        raise StaleChange(f'the skill {name} was changed in the very moment', f'look at it, then try {change_id} again')
