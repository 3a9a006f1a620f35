"""A desk's skills as they lie in its folder: `skills/<name>/SKILL.md`, in the Agent Skills format.

A `SKILL.md` begins with a front matter between two lines of `---`, of lines such as `name: sizing`; `name` (that of the
folder) and `description` must be there. Markdown follows. See https://agentskills.io/specification.
"""

import difflib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trading_agent import files
from trading_agent.errors import TradingAgentError
from trading_agent.files import storage_errors
from trading_agent.trigger import storable

SKILL_NAME = re.compile(r'[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?', re.ASCII)
LONGEST_SKILL = 64 << 10
"""The longest `SKILL.md`, in bytes."""

LONGEST_DESCRIPTION = 1024
"""The longest description, in characters."""

_FENCE = '---'
_FIELD = re.compile(r'([A-Za-z][\w-]*):(?:[ \t]+(.*))?', re.ASCII)
_PLAIN = re.compile(r'(?![\s\-?:,\[\]{}#&*!|>\'"%@`])(?:(?!: |:$| #)[^\x00-\x1f\x7f])+(?<!\s)')
_NOT_PLAIN = re.compile(r'(?:true|false|yes|no|on|off|null|~|[-+.\d][-+.\de_:]*)', re.IGNORECASE)
_BLOCK = re.compile(r'[|>][-+\d]{0,2}')


class SkillRefused(TradingAgentError, ValueError):
    """Raised when a skill cannot be read, or may not be written: it is none, or it leads out of its folder."""


@dataclass(frozen=True)
class Skill:
    """A skill that can be used.

    Attributes:
        name: Its name, and its folder's.
        description: What it is for, in one line.
        digest: SHA-256 of its `SKILL.md`, in hexadecimal.
    """

    name: str
    description: str
    digest: str


@dataclass(frozen=True)
class FaultySkill:
    """A folder among the skills that cannot be used as one.

    Attributes:
        name: The folder's name.
        error: Why.
    """

    name: str
    error: str


def digest_of(data: bytes) -> str:
    """Returns the digest of a `SKILL.md`."""
    return hashlib.sha256(data).hexdigest()


def skill_list(folder: Path) -> list[Skill]:
    """Returns the skills that can be used, by name. What is faulty is left out; `scan` tells it.

    Args:
        folder: The desk's folder.

    Raises:
        StorageError: The folder cannot be read.
    """
    return [skill for skill in scan(folder) if isinstance(skill, Skill)]


def scan(folder: Path) -> list[Skill | FaultySkill]:
    """Returns every skill of a desk, by name, the faulty ones too.

    Args:
        folder: The desk's folder.

    Raises:
        StorageError: The folder cannot be read.
    """
    return list(_scan(folder))


def _scan(folder: Path) -> Iterator[Skill | FaultySkill]:
    try:
        is_there = is_folder(folder / 'skills')
    except SkillRefused as error:
        yield FaultySkill('skills', str(error))
        return
    for name in sorted(files.names_in(folder / 'skills')) if is_there else ():
        with files.storage_errors('look at', folder / 'skills' / name):
            is_skill = not name.startswith('.') and (folder / 'skills' / name).is_dir()
        if not is_skill:
            continue
        try:
            data = skill_data(folder, name)
            if data is not None:
                yield Skill(name, description_in(name, data), digest_of(data))
        except SkillRefused as error:
            yield FaultySkill(name, str(error))


def read_skill(folder: Path, name: str) -> str:
    """Returns the text of a skill's `SKILL.md`.

    Args:
        folder: The desk's folder.
        name: The skill's name.

    Raises:
        SkillRefused: There is none of that name, or it cannot be used.
        StorageError: It is there and cannot be read.
    """
    data = skill_data(folder, name)
    if data is None:
        names = [skill.name for skill in skill_list(folder)]
        near = difflib.get_close_matches(name, names, 1)
        known = f'there is {", ".join(names[:30])}' if names else 'there is none yet'
        raise SkillRefused(f'there is no skill {name[:64]!r}', f'did you mean {near[0]!r}?' if near else known)
    description_in(name, data)
    return _text(data)


def skill_data(folder: Path, name: str) -> bytes | None:
    """Returns a skill's `SKILL.md` as it is, or None where there is none.

    Raises:
        SkillRefused: The name is none, a link stands in the skill's place, or the file is too long.
        StorageError: It is there and cannot be read.
    """
    checked_name(name)
    path = folder / 'skills' / name
    if not is_folder(folder / 'skills') or not is_folder(path):
        return None
    return regular_file(path / 'SKILL.md')


def checked_name(name: str) -> str:
    """Returns a skill's name.

    Raises:
        SkillRefused: It is none; a path, for example.
    """
    if not SKILL_NAME.fullmatch(name):
        raise SkillRefused(f'{name[:80]!r} is no name of a skill', 'a-z, 0-9 and - inside, at most 64 characters')
    return name


def is_folder(path: Path) -> bool:
    """Returns whether a folder is there.

    Raises:
        SkillRefused: Something else is there; a link is never followed.
        StorageError: It cannot be seen.
    """
    with storage_errors('look at', path):
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
    if not stat.S_ISDIR(mode):
        what = 'a link' if stat.S_ISLNK(mode) else 'no folder'
        raise SkillRefused(f'{path} is {what}', 'put the folder itself there')
    return True


def regular_file(path: Path) -> bytes | None:
    """Returns the content of a file that is no link, of at most 64 KiB; None where there is none.

    Raises:
        SkillRefused: It is something else, or longer.
        StorageError: It is there and cannot be read.
    """
    with storage_errors('read', path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise SkillRefused(f'{path} is no plain file', 'put the file itself there') from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SkillRefused(f'{path} is no plain file', 'put the file itself there')
            data = b''
            while len(data) <= LONGEST_SKILL and (block := os.read(descriptor, LONGEST_SKILL + 1 - len(data))):
                data += block
        finally:
            os.close(descriptor)
    if len(data) > LONGEST_SKILL:
        raise SkillRefused(f'{path} has more than 64 KiB', 'move what is long into other files of the same folder')
    return data


# -- the format ------------------------------------------------------------------------------------------------


def description_in(name: str, data: bytes) -> str:
    """Returns the description of a skill, in one line.

    Raises:
        SkillRefused: It is no `SKILL.md` of a skill of that name.
    """
    fields = dict(_fields(name, _front(name, _text(data))[0]))
    if fields.get('name') != name:
        raise SkillRefused(f'the skill {name} calls itself {fields.get("name", "")[:80]!r}', f'write `name: {name}`')
    description = fields.get('description', '')
    if not description or len(description) > LONGEST_DESCRIPTION:
        raise SkillRefused(
            f'the skill {name} has {"too long a" if description else "no"} description',
            f'write a line `description: …` of at most {LONGEST_DESCRIPTION} characters',
        )
    return description


def skill_text(name: str, description: str, body: str, old: bytes | None = None) -> bytes:
    """Returns the `SKILL.md` of a skill.

    Args:
        name: Its name.
        description: What it is for; line ends become spaces.
        body: The Markdown behind the front matter.
        old: The one that it is to replace, whose other fields stay as they are written; None for a new skill.

    Raises:
        SkillRefused: The name is none, a text is missing or too long, or the old one cannot be understood.
    """
    checked_name(name)
    description = ' '.join(storable(description).split())
    body = storable(body.replace('\r\n', '\n')).strip()
    if not description or len(description) > LONGEST_DESCRIPTION:
        raise SkillRefused(f'the description of {name} has {len(description)} characters', 'from 1 to 1024 are good')
    if not body:
        raise SkillRefused(f'the skill {name} says nothing', 'write what is to be done, and when')
    quoted = not _PLAIN.fullmatch(description) or _NOT_PLAIN.fullmatch(description)
    lines = [f'name: {name}', f'description: {json.dumps(description, ensure_ascii=False) if quoted else description}']
    if old is not None:
        lines += _other_lines(_front(name, _text(old))[0])
    data = '\n'.join([_FENCE, *lines, _FENCE, '', body, '']).encode()
    if len(data) > LONGEST_SKILL:
        raise SkillRefused(f'the skill {name} would have {len(data):,} bytes', 'at most 64 KiB are good')
    description_in(name, data)
    return data


def body_of(data: bytes) -> str:
    """Returns the Markdown of a `SKILL.md`; all of it where it has no front matter."""
    try:
        return _front('', _text(data))[1]
    except SkillRefused:
        return _text(data)


def _text(data: bytes) -> str:
    return data.decode('utf-8-sig', errors='replace').replace('\r\n', '\n')


def _front(name: str, text: str) -> tuple[list[str], str]:
    """Returns the lines of the front matter, and what stands behind it."""
    first, *lines = text.split('\n')
    if first.rstrip() == _FENCE:
        for number, line in enumerate(lines):
            if line.rstrip() == _FENCE:
                return lines[:number], '\n'.join(lines[number + 1 :]).strip('\n')
    raise SkillRefused(
        f'the SKILL.md of {name} has no front matter', 'begin it with --- and lines `name: …` and `description: …`'
    )


def _fields(name: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the fields of a front matter; a line that is indented goes on with the one before."""
    key, parts = '', ['']
    for line in lines:
        if not line.strip() or line.startswith('#'):
            continue
        if line[0] in ' \t':
            parts.append(line.strip())
            continue
        field = _FIELD.fullmatch(line.rstrip())
        if field is None:
            raise SkillRefused(
                f'the front matter of the skill {name} has a line {line[:80]!r}', 'write lines such as `key: value`'
            )
        yield key, _value(parts)
        key, parts = field[1], [field[2] or '']
    yield key, _value(parts)


def _value(parts: list[str]) -> str:
    """Returns a value without its quotes, in one line."""
    text = ' '.join(parts[1:] if _BLOCK.fullmatch(parts[0].strip()) else parts).strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text[1:-1]
    elif len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].replace("''", "'")
    return ' '.join(text.split())


def _other_lines(lines: list[str]) -> list[str]:
    kept, keep = [], True
    for line in lines:
        field = _FIELD.fullmatch(line.rstrip())
        if field is not None:
            keep = field[1] not in ('name', 'description')
        if keep:
            kept.append(line)
    return kept
