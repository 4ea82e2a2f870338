# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: paths, markers, and settings for reproducible arithmetic."""

import gc
import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SERVER = pytest.StashKey()
sys.path.insert(0, str(HERE))
if importlib.util.find_spec("hocket") is None:  # not installed
    sys.path.insert(0, str(HERE.parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "full: takes long; runs if HOCKET_TEST_FULL is set, only")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("HOCKET_TEST_FULL"):
        return
    left = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish(session):
    # Imported here, because xdist's first process, which runs no test, needs no torch.
    import torch
    import torch._dynamo  # noqa: F401  (for two seconds, which the first optimizer would take)

    from forked import Server

    torch.set_num_threads(1)  # reproducible sums, and tests can run in parallel
    # torch and its kind are a million objects, which each full collection would look at.
    gc.collect()
    gc.freeze()
    if any("forked" in item.fixturenames for item in session.items):
        session.config.stash[SERVER] = Server()


@pytest.fixture(scope="session")
def forked(request):
    """Starts Python programs in processes of their own (see forked.py)."""
    server = request.config.stash[SERVER]
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _deterministic():
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT
