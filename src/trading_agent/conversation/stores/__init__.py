"""Where sessions are kept from one run to the next: in memory, or in a SQLite file."""

from trading_agent.conversation.stores.base import InvalidSession, SessionStore
from trading_agent.conversation.stores.database import DatabaseBusy, DatabaseUnusable
from trading_agent.conversation.stores.memory import InMemoryStore
from trading_agent.conversation.stores.sqlite import SQLiteStore

__all__ = ['DatabaseBusy', 'DatabaseUnusable', 'InMemoryStore', 'InvalidSession', 'SQLiteStore', 'SessionStore']
