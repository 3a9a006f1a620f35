"""What the index answers: records that the full text, the vectors and the command line share."""

from datetime import date

import msgspec


class Hit(msgspec.Struct, frozen=True):
    """A message that was found.

    Attributes:
        desk: The desk.
        session_id: The session.
        trading_date: The session's India date.
        number: The message's number in the session.
        at: When it was said, as an ISO 8601 string in UTC; empty where that is not known.
        who: `user`, `assistant` or `tool:<name>`.
        trigger_id: The trigger that was answered; empty where that is not known.
        text: What was said, whole.
        excerpt: The part of it that shows the match best, on one line; the beginning where nothing is marked.
        marks: Where in the excerpt the match is: pairs of start and end, in characters.
        score: How well it matches, higher is better; only scores of one search compare.
    """

    desk: str
    session_id: str
    trading_date: date
    number: int
    at: str
    who: str
    trigger_id: str
    text: str
    excerpt: str
    marks: list[tuple[int, int]] = []
    score: float = 0.0


class Passage(msgspec.Struct, frozen=True):
    """A message that search may find, as an index of meanings takes it over.

    Attributes:
        desk: The desk.
        session_id: The session.
        trading_date: The session's India date.
        number: The message's number in the session; see `mark_after`.
        text: What was said; never blank.
    """

    desk: str
    session_id: str
    trading_date: date
    number: int
    text: str


class Progress(msgspec.Struct, frozen=True):
    """How far a catching-up or a rebuild is.

    Attributes:
        done: Bytes read so far.
        total: Bytes to read in all, as known at the beginning.
        desk: Whose files are being read.
        session_id: Which session's.
    """

    done: int
    total: int
    desk: str
    session_id: str


class DeskStatus(msgspec.Struct, frozen=True):
    """What the index holds of one desk.

    Attributes:
        desk: The desk.
        sessions: How many of its sessions are in the index.
        messages: How many messages, those of questions beside a session and of cut-off turns included.
        exchanges: How many exchanges.
        damaged_lines: How many lines of its files could not be read.
        behind: How many bytes of its files are not in the index yet.
    """

    desk: str
    sessions: int
    messages: int
    exchanges: int
    damaged_lines: int
    behind: int


class Difference(msgspec.Struct, frozen=True):
    """One way in which the index is not what the JSONL files say.

    Attributes:
        desk: The desk; empty where it is about the index as a whole.
        session_id: The session; empty likewise.
        table: The table; `index` where there is none or it cannot be read, `files` where files are not read to
            their end, `said` for the full text.
        what: What is different, in words.
    """

    desk: str
    session_id: str
    table: str
    what: str


EXCHANGE_STEP = 1 << 32
"""A message of a journal has the number of its line there, which is below this. A message that was made from an
exchange, because no journal has its turn, has a multiple of it: twice its line's number in the log, one more for the
answer."""


def mark_after(mark: int, number: int) -> int:
    """Returns how far a session has been taken over, once the message of this number has been as well.

    Journal and exchange log are read side by side, so that a mark is two numbers in one: the last journal line in its
    lower 32 bits, the last exchange above them. Where a session has only one of the two, as nearly all have, it is
    the highest number; taking that for it elsewhere costs passages that come again, and never one that is missed.
    """
    line, exchange = mark % EXCHANGE_STEP, mark // EXCHANGE_STEP
    return max(exchange, number // EXCHANGE_STEP) * EXCHANGE_STEP + max(line, number % EXCHANGE_STEP)
