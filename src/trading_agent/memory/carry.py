"""What a new session begins with: the summaries of the sessions before it."""

import re
from collections.abc import Iterable, Sequence
from datetime import date

from trading_agent.memory.daily_summary import DailySummary, split_sections
from trading_agent.memory.rollover import clipped

BEGIN = '[First message of session {session_id}. What came before:]'
LATE = '[The full summary of session {session_id} is there now; so far you had a short one:]'
END = '[End of what came before. Lessons that last are in Memory.md. The message follows.]'
_FRONTS = (BEGIN.partition('{')[0], LATE.partition('{')[0])
_HEADING = re.compile(r'^(?=#{1,6}[ \t]+Session\b)', re.MULTILINE)
_END_MARK = re.compile(r'\[(?=\W{0,9}end\W{1,9}of\W{1,9}what\W{1,9}came\W{1,9}before)', re.IGNORECASE)


def chosen(summaries: Sequence[DailySummary], today: date) -> list[DailySummary]:
    """Picks the summaries that a session of `today` begins with, oldest first.

    The newest dated no later than today, and those back to the last weekday before today: on a Monday what a
    special Saturday or Sunday session left, and Friday's.

    Args:
        summaries: Every summary, newest first.
        today: The new session's trading date.
    """
    picked: list[DailySummary] = []
    for summary in summaries:
        if summary.trading_date > today:
            continue
        picked.append(summary)
        if summary.trading_date < today and summary.trading_date.weekday() < 5:
            break
    return picked[::-1]


def carried(summaries: Iterable[DailySummary], most_sessions: int, budget: int) -> tuple[str, list[str]]:
    """Returns the text of the summaries to carry, oldest first, and whose sessions' they are.

    Args:
        summaries: As `chosen` returns them.
        most_sessions: Most sessions; the newest are taken.
        budget: Most characters of one session's summary.
    """
    parts: list[tuple[str, str]] = []
    for summary in summaries:
        preface, sections = split_sections(summary.text)
        if preface:
            parts.append(('', f'## {summary.trading_date.isoformat()}\n\n{harmless(clipped(preface, budget))}'))
        for section in sections:
            title = section.session_id + (' (short: no model could be asked)' if section.degraded else '')
            parts.append((section.session_id, f'## Session {title}\n\n{harmless(clipped(section.text, budget))}'))
    taken = parts[-most_sessions:] if most_sessions else []
    return '\n\n'.join(text for _, text in taken), [session_id for session_id, _ in taken if session_id]


def framed(heading: str, carried_text: str, text: str) -> str:
    """Returns a message with what came before in front of it."""
    return f'{heading}\n\n{carried_text}\n\n{END}\n\n{text}'


def harmless(text: str) -> str:
    """Keeps a summary from ending itself, or from beginning another one.

    What looks like the end mark, wherever it stands, loses its bracket, and a session's heading is escaped.
    """
    return _HEADING.sub('\\\\', _END_MARK.sub('(', text))


def message_in(text: str) -> str:
    """Returns the message that stands behind what came before, or the whole text where nothing stands in front."""
    while text.startswith(_FRONTS):
        _, end, message = text.partition(f'\n\n{END}\n\n')
        if not end:
            break
        text = message
    return text
