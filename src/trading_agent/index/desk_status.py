"""What the index holds, desk by desk."""

from collections import Counter
from pathlib import Path

from trading_agent.index.database import IndexFile
from trading_agent.index.feed import Places, behind, places
from trading_agent.index.results import DeskStatus
from trading_agent.index.session_files import Snapshot


def desk_status(index: IndexFile, workspace: Path) -> list[DeskStatus]:
    """Returns what the index holds of each desk that has a folder or is in it, by name. Nothing is written.

    Raises:
        IndexDamaged: The index cannot be read.
        StorageError: It cannot be read; what cannot be read of a desk's files is left out.
    """
    snapshot = Snapshot(workspace)
    known: Places = {}
    messages, exchanges = Counter[str](), Counter[str]()
    if index.exists:
        with index.reading('read') as connection:
            known = places(connection)
            count = 'SELECT desk, count(*) FROM {} GROUP BY desk'
            messages.update(dict(connection.execute(count.format('messages')).fetchall()))
            exchanges.update(dict(connection.execute(count.format('exchanges')).fetchall()))
    sessions = Counter(desk for desk, _ in known)
    unread, damaged = Counter[str](), Counter[str]()
    for session in snapshot.found:
        unread[session.desk] += behind(session, known)
    for (desk, _), of_files in known.items():
        damaged[desk] += sum(place.damaged for place in of_files.values())
    return [
        DeskStatus(desk, sessions[desk], messages[desk], exchanges[desk], damaged[desk], unread[desk])
        for desk in sorted({*snapshot.desks, *sessions})
    ]
