"""What a real model is told beside the trigger's own words: what time it is, its instructions, what it has learnt."""

from collections.abc import Sequence
from datetime import date, datetime

from trading_agent.clock import INDIA

_PREFACE = (
    'You are the trading desk "{desk}". Each message begins with the time in India and the trading date; trust these '
    'and not what you remember of the calendar.'
)


def timed(text: str, at: datetime | None, trading_date: date) -> str:
    """Returns a message with the time at which the desk was told it in front.

    What was said before the trading date began belongs to an earlier one: then the date is left out.

    Args:
        text: The message.
        at: When the turn began, or None where that is not known.
        trading_date: The session's India date.
    """
    if at is None:
        return f'[Trading date {trading_date}]\n{text}'
    here = at.astimezone(INDIA)
    day = f'; trading date {trading_date}' if here.date() >= trading_date else ''
    return f'[{here:%H:%M IST, %A %Y-%m-%d}{day}]\n{text}'


def system_prompt(
    desk: str, *, instructions: str, memory: str, skills: Sequence[tuple[str, str]] = (), digest: str = ''
) -> str:
    """Returns what stands above the conversation, what changes least first, so that it can be read from a cache.

    Args:
        desk: The desk's name.
        instructions: The text of AGENTS.md, which people write.
        memory: The text of Memory.md.
        skills: The name and the description of each skill.
        digest: What was said before the first message that is sent, in short.
    """
    parts = [_PREFACE.format(desk=desk)]
    if instructions.strip():
        parts.append(f'# Standing instructions (AGENTS.md)\n\n{instructions.strip()}')
    if memory.strip():
        parts.append(f'# What you have learnt (Memory.md)\n\n{memory.strip()}')
    if skills:
        listed = '\n'.join(f'- {name}: {description}' for name, description in skills)
        parts.append(f'# Skills; read one before you use it\n\n{listed}')
    if digest:
        parts.append(f'# Earlier in this session, in short\n\n{digest}')
    return '\n\n'.join(parts)
