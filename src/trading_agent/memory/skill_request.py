"""What the skill curator asks a model, in words and as a schema."""

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, get_args

from trading_agent.memory.skill_folder import LONGEST_DESCRIPTION, LONGEST_SKILL
from trading_agent.memory.skill_ledger import Proposal, SkillChange, SkillRecord

_INSTRUCTION = """\
The trading day {trading_date} of the desk "{desk}" is over. Look at the desk's skills: texts that say how something \
is done which comes up again and again. Answer with one JSON object:
- "actions": at most {most} changes, as a rule none. Each has
  - "action": "create" for a way of working that this day has shown and that will be needed again, "revise" for a \
skill that this day has shown to be wrong or incomplete, "archive" for one that is not needed any more;
  - "name": of the skill, from a-z, 0-9 and -, at most 64 characters;
  - "description": what it does and when it is to be used, in one line of at most {longest} characters; empty for \
archive;
  - "body": the whole new text in Markdown, without front matter; empty for archive;
  - "reason": what of this day asks for it.
What happened on one day alone is no skill; what people told the desk to keep to is in Memory.md.
{summary}
The skills are now:

{skills}
{waiting}{unwanted}"""

_MOST_UNWANTED = 20


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of an answer."""
    fields: dict[str, Any] = {
        'action': {'type': 'string', 'enum': list(get_args(SkillChange))},
        'name': {'type': 'string'},
        'description': {'type': 'string', 'maxLength': LONGEST_DESCRIPTION},
        'body': {'type': 'string', 'maxLength': LONGEST_SKILL},
        'reason': {'type': 'string'},
    }
    action = {'type': 'object', 'properties': fields, 'required': list(fields), 'additionalProperties': False}
    return {
        'type': 'object',
        'properties': {'actions': {'type': 'array', 'items': action}},
        'required': ['actions'],
        'additionalProperties': False,
    }


def instruction(
    desk: str,
    trading_date: date,
    *,
    most: int,
    summary: str,
    skills: str,
    waiting: Sequence[Proposal],
    unwanted: Sequence[SkillRecord],
) -> str:
    """Returns how changes are asked for.

    Args:
        desk: The desk's name.
        trading_date: The day.
        most: Most changes.
        summary: The day's summary, where only the end of the day is shown; else empty.
        skills: The skills of now, in words; empty for none.
        waiting: The changes that wait for a person.
        unwanted: The changes that people turned down; the newest are shown.
    """
    return _INSTRUCTION.format(
        trading_date=trading_date.isoformat(),
        desk=desk,
        most=most,
        longest=LONGEST_DESCRIPTION,
        summary=f'\nOnly the end of the day was shown. Its summary:\n\n{summary}\n' if summary else '',
        skills=skills or '(none)',
        waiting=_list(
            'These changes wait for a person; do not ask for them again:',
            ((change.action, change.name, change.reason) for change in waiting),
        ),
        unwanted=_list(
            'These changes were turned down:',
            ((change.action, change.name, change.why) for change in unwanted[-_MOST_UNWANTED:]),
        ),
    )


def _list(heading: str, changes: Iterable[tuple[str, str, str]]) -> str:
    lines = [f'- {action} {name}' + (f': {why}' if why else '') for action, name, why in changes]
    return '\n'.join(['', heading, '', *lines, '']) if lines else ''
