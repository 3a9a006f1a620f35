"""Starts real daemons for a test, and ends each of them whatever becomes of the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from process import Process, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon, by default on the workspace `ws` of this test; killed at the end of the test."""
    with ExitStack() as stack:

        def start_one(config: str = '', *, workspace: Path | None = None, **options: Any) -> Process:  # noqa: ANN401
            process = Process(workspace or tmp_path / 'ws', config, **options)
            stack.callback(process.close)
            return process

        yield start_one
