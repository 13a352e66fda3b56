"""One served model for a module's tests; each test has a rollout of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.served_model import ServedModel, served_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """Answers as they are."""
    with served_model(tmp_path_factory.mktemp("captures")) as served:
        yield served


@pytest.fixture(scope="module")
def gzip_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """Answers compressed."""
    with served_model(tmp_path_factory.mktemp("captures"), gzip=True) as served:
        yield served
