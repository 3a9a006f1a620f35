"""When a session is over, and how far its ending has come: the decision, and the record that survives a crash."""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Literal, get_args

import msgspec

from trading_agent.clock import INDIA
from trading_agent.events import SessionReason
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import newest_session
from trading_agent.providers.announcement import read
from trading_agent.providers.extract import rules_in

Stage = Literal['answers', 'summary', 'memory', 'skills', 'session', 'announced']
STAGES: tuple[Stage, ...] = get_args(Stage)

FORMAT_VERSION = 1
CORRECT_AFTER = timedelta(minutes=10)
"""How long the clock must show an earlier date, steadily, before the session counts as dated by a wrong clock."""


class Decision(Enum):
    """What the date asks for."""

    STAY = 'stay'
    ROLL_OVER = 'daily_rollover'
    CORRECT = 'clock_corrected'
    BEHIND = 'behind'


def decide(session_date: date | None, trusted_date: date, behind_for: timedelta = timedelta()) -> Decision:
    """Says what is to happen to a session.

    Args:
        session_date: The session's trading date, or None where there is no session.
        trusted_date: The trading date of now, as far as the clock can be trusted.
        behind_for: How long the clock has shown a date before the session's, steadily.
    """
    if session_date is None or session_date == trusted_date:
        return Decision.STAY
    if trusted_date > session_date:
        return Decision.ROLL_OVER
    return Decision.CORRECT if behind_for >= CORRECT_AFTER else Decision.BEHIND


class Review(msgspec.Struct, frozen=True):
    """What a model made of a session, or what was made without one.

    Attributes:
        summary: The session's summary.
        degraded: Whether it was made without a model.
        memory: The new text of Memory.md; empty for no change.
        memory_digest: The digest of the Memory.md that the new text was made from.
        backend: The backend that answered, or None.
        reasons: Why Memory.md was changed so.
        unproved: How much of the summary is marked, because it does not stand in what it was made from.
        shortened: Whether a Memory.md that was too long was asked for again.
    """

    summary: str
    degraded: bool = False
    memory: str = ''
    memory_digest: str = ''
    backend: str | None = None
    reasons: str = ''
    unproved: int = 0
    shortened: bool = False


class SummaryPart(msgspec.Struct, frozen=True):
    """The summary of a part of a session that is too long to be reviewed at once.

    Attributes:
        exchanges: How many exchanges it is of; they follow those of the part before.
        summary: The summary.
    """

    exchanges: int
    summary: str


class RolloverRecord(msgspec.Struct, frozen=True):
    """`rollover.json`: a rollover that is under way.

    Attributes:
        ended_session_id: The session that ends.
        reason: Why.
        stage: The stage that is to be done next; those before it are done.
        review: What the models answered, once they have.
        summary_path: The summary's file, once it is written.
        new_session_id: The session that follows, once it is chosen; its log may be missing still.
        exchanges: How many exchanges the ended session has.
        version: The format of this file.
        parts: The parts of a long session that are summed up already, in their order.
    """

    ended_session_id: str
    reason: SessionReason
    stage: Stage
    review: Review | None = None
    summary_path: str | None = None
    new_session_id: str | None = None
    exchanges: int = 0
    version: int = FORMAT_VERSION
    parts: tuple[SummaryPart, ...] = ()


def session_to_resume(
    record: RolloverRecord | None, logs: Sequence[str], given_out: Sequence[str], today: date
) -> str | None:
    """Returns the session to go on with where the state is lost; None where there has been none.

    A rollover under way names it, unless another session was begun since. Else it is the last one that was begun:
    those before it have ended, and are not gone on with though its log is lost.

    Args:
        record: The rollover that was cut off, or None.
        logs: The sessions that have a log.
        given_out: The ids that were given out, in that order, as far as that was written down.
        today: Today's India date; a session dated later than tomorrow was dated by a wrong clock.
    """
    if record is not None and (not given_out or given_out[-1] in (record.ended_session_id, record.new_session_id)):
        return (record.stage == 'announced' and record.new_session_id) or record.ended_session_id
    if not logs:
        return None
    last = next((each for each in reversed(given_out) if newest_session([each], today)), None)
    unlisted = {*logs} - {*given_out}
    return newest_session(unlisted if last is None else {*unlisted, last}, today)


def clipped(text: str, budget: int) -> str:
    """Returns a text of at most `budget` characters, cut at a line where that is possible, and saying so."""
    if len(text) <= budget:
        return text
    mark = '\n[… cut here]'
    kept = text[: max(0, budget - len(mark))]
    whole_lines = kept.rpartition('\n')[0]
    return ((whole_lines if len(whole_lines) > budget // 2 else kept) + mark)[:budget]


def summary_without_model(exchanges: Sequence[Exchange], budget: int, notes: Sequence[str] = ()) -> str:
    """Returns what can be said of a session when no model can be asked, word for word.

    That is what people told the desk to keep to, however long ago, what it noted down, and the last exchanges.

    Args:
        exchanges: The session's exchanges, oldest first.
        budget: The longest result, in characters.
        notes: The desk's notes of the session, oldest first.
    """
    if not exchanges:
        return clipped('No model could be asked, and no exchange can be read.', budget)
    head = (
        f'No model could be asked. {len(exchanges)} exchanges, from {_time(exchanges[0])} to {_time(exchanges[-1])} '
        f'IST.{_standing_rules(exchanges, budget // 3)}{_noted(notes, budget // 4)} The last ones, word for word:'
    )
    parts: list[str] = []
    left = budget - len(head)
    for exchange in reversed(exchanges):
        part = f'\n\n{_time(exchange)} told: {exchange.trigger_text.strip()}\nanswered: {exchange.answer.strip()}'
        if len(part) > left:
            if not parts and left > 100:
                parts.append(clipped(part, left))
            break
        parts.append(part)
        left -= len(part)
    return clipped(head + ''.join(reversed(parts)), budget)


def _standing_rules(exchanges: Sequence[Exchange], budget: int) -> str:
    messages = [read(exchange.trigger_text) for exchange in exchanges]
    rules = dict.fromkeys(rule for message in messages if not message.announcement for rule in rules_in(message))
    if not rules:
        return ''
    return ' To keep to, as it was told:\n' + clipped('\n'.join(f'- {rule}' for rule in rules), budget) + '\n\n'


def _noted(notes: Sequence[str], budget: int) -> str:
    if not notes:
        return ''
    return (
        ' Noted down, the newest first:\n'
        + clipped('\n'.join(f'- {note}' for note in reversed(notes)), budget)
        + '\n\n'
    )


def _time(exchange: Exchange) -> str:
    try:
        return f'{datetime.fromisoformat(exchange.finished_at).astimezone(INDIA):%H:%M}'
    except (ValueError, OverflowError):
        return '?'
