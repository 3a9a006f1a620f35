"""What is left of a day when it is over: one summary a day, one section in it for each session."""

import re
from dataclasses import dataclass
from datetime import date

from trading_agent.memory.session_state import is_session_id


@dataclass(frozen=True)
class DailySummary:
    """The summary written when one day's session ended.

    Attributes:
        trading_date: The day it summarises.
        text: The summary.
    """

    trading_date: date
    text: str


@dataclass(frozen=True)
class SummarySection:
    """What one session left in its day's summary.

    Attributes:
        session_id: The session.
        text: The summary.
        degraded: Whether it was made without a model, so that a full one is owed.
    """

    session_id: str
    text: str
    degraded: bool

    def to_markdown(self) -> str:
        """Returns the section as it stands in the file."""
        return f'## Session {self.session_id}{" (degraded)" if self.degraded else ""}\n\n{self.text}'


_HEADING = re.compile(r'^## Session (\d{4}-\d{2}-\d{2}-[1-9]\d{0,8})( \(degraded\))?[ \t]*$', re.MULTILINE | re.ASCII)


def split_sections(text: str) -> tuple[str, list[SummarySection]]:
    """Returns what stands before the first section, and the sections, of a day's file."""
    text = text.replace('\r\n', '\n')
    headings = [heading for heading in _HEADING.finditer(text) if is_session_id(heading[1])]
    sections = []
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):
        body = text[heading.end() : end]
        sections.append(SummarySection(heading[1], body.strip(), bool(heading[2])))
    return text[: headings[0].start() if headings else len(text)].strip(), sections


def quoted_headings(text: str) -> str:
    """Returns a text in which no line is taken for the heading of a section."""
    return _HEADING.sub(lambda heading: '\\' + heading[0], text.replace('\r\n', '\n').replace('\r', '\n'))
