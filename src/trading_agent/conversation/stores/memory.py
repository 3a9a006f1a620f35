"""Sessions in this process's memory."""

from typing import Any

from trading_agent.conversation.stores.base import SessionStore, decode_data, encode_data, encode_id


class InMemoryStore(SessionStore):
    """Keeps sessions for as long as the process lives: for trying things out, and for tests.

    It takes and refuses what `SQLiteStore` does, so that what works here works there.

    Example:
        store = InMemoryStore()
        store.save('morning', {'system': 'You watch NSE.', 'messages': [{'role': 'user', 'content': 'Hello'}]})
        store.load('morning')['system']  # 'You watch NSE.'
    """

    def __init__(self) -> None:
        # Each method does one thing with this dictionary, which CPython does whole: threads need no lock, and no
        # lock is left held in the child of a fork.
        self._sessions: dict[bytes, str] = {}

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        """Keeps a session's data, in place of any that was there. See `SessionStore.save`."""
        key, text = encode_id(session_id), encode_data(session_id, data)
        self._sessions[key] = text

    def load(self, session_id: str) -> dict[str, Any] | None:
        """Returns a copy of a session's data, or None where there is no such session."""
        text = self._sessions.get(encode_id(session_id))
        return None if text is None else decode_data(text)

    def delete(self, session_id: str) -> bool:
        """Forgets a session; returns whether it was there."""
        return self._sessions.pop(encode_id(session_id), None) is not None

    def list_sessions(self) -> list[str]:
        """Returns the id of every session, sorted."""
        return [key.decode() for key in sorted(self._sessions)]

    def clear(self) -> None:
        """Forgets every session."""
        self._sessions.clear()
