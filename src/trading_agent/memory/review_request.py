"""What a model is asked when a session is over, in words and as a schema."""

from collections.abc import Sequence
from typing import Any

from trading_agent.memory.rollover import clipped

REVIEW_INSTRUCTION = """\
The session {session_id} of the desk "{desk}" is over. Review it, and answer with one JSON object:
- "summary": what tomorrow's session must know, in Markdown and in at most {summary_budget} characters: what happened, \
what was decided and why, open positions, orders and questions, with every number, date and symbol exactly as it was \
said. State nothing that was not said; what was marked with [?] was not proved, and stays marked.
- "memory": the whole new text of Memory.md, in at most {memory_budget} characters: the lessons and standing rules \
that last beyond a day. Keep what still holds, word for word where a person wrote it, and each line that is marked \
<!-- keep --> as it stands. An empty text leaves Memory.md as it is; one that loses more than half of it is not taken.
- "reasons": why Memory.md was changed as it was, in a sentence or two.
{parts}{notes}
Memory.md is now:

{memory}
"""

_IN_PARTS = """
The session was too long to be shown whole: what you were shown are the summaries of its parts, in order.
"""

_PART_INSTRUCTION = """\
The session {session_id} of the desk "{desk}" is over, and too long to be reviewed at once. What you were shown are \
its exchanges {first} to {last} of {total}. Sum them up for the review that follows, and answer with one JSON object:
- "summary": in Markdown and in at most {budget} characters: what happened, what was decided and why, rules that \
people told the desk, open positions, orders and questions, with every number, date and symbol exactly as it was said. \
State nothing that was not said.
"""

_SHORTER_INSTRUCTION = """\
The Memory.md that you wrote after the session {session_id} of the desk "{desk}" has {length} characters, and at most \
{memory_budget} are taken. Write it again, shorter, and answer with one JSON object:
- "memory": the whole new text, in at most {memory_budget} characters. Leave out first what matters least for the days \
to come. Each line that is marked <!-- keep --> stays as it stands.
- "reasons": what was left out and why, in a sentence or two.

The text that is too long:

{draft}
"""


def review_schema(summary_budget: int, memory_budget: int) -> dict[str, Any]:
    """Returns the JSON Schema of a review; the budgets are in characters."""
    return _object(
        summary={'type': 'string', 'minLength': 1, 'maxLength': summary_budget},
        memory={'type': 'string', 'maxLength': memory_budget},
        reasons={'type': 'string'},
    )


def part_schema(budget: int) -> dict[str, Any]:
    """Returns the JSON Schema of the summary of a part; the budget is in characters."""
    return _object(summary={'type': 'string', 'minLength': 1, 'maxLength': budget})


def shorter_schema(memory_budget: int) -> dict[str, Any]:
    """Returns the JSON Schema of a Memory.md that is asked for again; the budget is in characters."""
    return _object(memory={'type': 'string', 'maxLength': memory_budget}, reasons={'type': 'string'})


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        'type': 'object',
        'properties': properties,
        'required': list(properties),
        'additionalProperties': False,
    }


def review_instruction(
    desk: str,
    session_id: str,
    *,
    memory: str,
    notes: Sequence[str],
    notes_budget: int,
    in_parts: bool,
    summary_budget: int,
    memory_budget: int,
) -> str:
    """Returns how a review is asked for; the budgets are in characters.

    Args:
        desk: The desk's name.
        session_id: The session.
        memory: The text of Memory.md.
        notes: The desk's notes of the session, oldest first.
        notes_budget: Most of them; the newest are shown.
        in_parts: Whether the summaries of the session's parts are shown in the place of its exchanges.
        summary_budget: The longest summary.
        memory_budget: The longest Memory.md.
    """
    return REVIEW_INSTRUCTION.format(
        session_id=session_id,
        desk=desk,
        summary_budget=summary_budget,
        memory_budget=memory_budget,
        parts=_IN_PARTS if in_parts else '',
        notes=_notes_in_words(notes, notes_budget),
        memory=memory or '(empty)',
    )


def _notes_in_words(notes: Sequence[str], budget: int) -> str:
    shown: list[str] = []
    for note in reversed(notes):
        line = '- ' + note.replace('\n', '\n  ')
        budget -= len(line) + 1
        if budget < 0:
            break
        shown.append(line)
    if not notes:
        return ''
    left_out = len(notes) - len(shown)
    told = f' ({left_out} earlier ones are left out)' if left_out else ''
    return f'\nWhat the desk noted down in the course of the session{told}:\n\n' + '\n'.join(shown[::-1]) + '\n'


def part_instruction(desk: str, session_id: str, *, first: int, last: int, total: int, budget: int) -> str:
    """Returns how the summary of the exchanges `first` to `last` (from 1) of a long session is asked for."""
    return _PART_INSTRUCTION.format(
        session_id=session_id, desk=desk, first=first, last=last, total=total, budget=budget
    )


def shorter_instruction(desk: str, session_id: str, draft: str, memory_budget: int) -> str:
    """Returns how a Memory.md that is too long is asked for again."""
    return _SHORTER_INSTRUCTION.format(
        session_id=session_id,
        desk=desk,
        length=len(draft),
        memory_budget=memory_budget,
        draft=clipped(draft, 10 * memory_budget),
    )
