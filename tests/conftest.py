"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_pack() -> Path:
    """The folder of public annotations and logs that some tests check against."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the data pack is not beside the repository ({folder.name} not found)")
    return folder
