"""What a desk is told with each turn beside the trigger: standing instructions, Memory.md, the list of skills."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from trading_agent import files
from trading_agent.conversation.tools import Tool
from trading_agent.memory.damage import DamageReport
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.skill_folder import skill_list
from trading_agent.routing.turn_journal import Digests
from trading_agent.tools.desk_tools import DeskTools

INSTRUCTIONS_NAME = 'AGENTS.md'


class DeskTexts(msgspec.Struct, frozen=True):
    """These texts, as they are on the disk.

    Attributes:
        memory: Memory.md.
        instructions: AGENTS.md, which people write, and nobody else.
        skills: The name and the description of each skill.
    """

    memory: str
    instructions: str
    skills: list[tuple[str, str]]


class Surroundings:
    """What a desk's turns see beside the trigger, and what they may call.

    Args:
        folder: The desk's folder.
        memory: Its Memory.md, or None.
        tools: Its tools, or None.
        damage: Is told of bytes in AGENTS.md that are not UTF-8.
    """

    def __init__(self, folder: Path, memory: MemoryFile | None, tools: DeskTools | None, damage: DamageReport) -> None:
        self._folder = folder
        self._damage = damage
        self._memory = memory
        self._tools = tools

    def read(self) -> DeskTexts:
        """Reads the desk's texts; a missing one is empty. It blocks on the disk.

        Raises:
            StorageError: One is there and cannot be read.
        """
        path = self._folder / INSTRUCTIONS_NAME
        return DeskTexts(
            memory=self._memory.read().text if self._memory else '',
            instructions=self._damage.text_of(path, files.read(path) or b''),
            skills=[(skill.name, skill.description) for skill in skill_list(self._folder)],
        )

    def digests(self, texts: DeskTexts) -> Digests:
        """Returns the digests of what a turn sees."""
        tools = self._tools.digest() if self._tools is not None else ''
        return Digests(_digest(texts.instructions), _digest(texts.memory), tools)

    def tools_for(self, trigger_id: str | None, attempt: int, session_id: str) -> Sequence[Tool]:
        """Returns what may be called in a turn; nothing in a question beside the session."""
        if self._tools is None or trigger_id is None:
            return ()
        return self._tools.for_turn(trigger_id, attempt, session_id)

    def is_read_only(self, name: str) -> bool:
        """Whether a tool has no effects; of one that is not known that cannot be said."""
        return self._tools is not None and not self._tools.has_side_effects(name)


def _digest(text: str) -> str:
    return blake2b(text.encode(errors='replace'), digest_size=16).hexdigest() if text else ''
