# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: paths, markers, and settings for reproducible arithmetic."""

import gc
import os
import pathlib
import sys

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
try:
    import hocket  # noqa: F401  (installed)
except ImportError:
    sys.path.insert(0, str(HERE.parent))


torch.set_num_threads(1)  # reproducible sums, and tests can run in parallel


def pytest_configure(config):
    config.addinivalue_line("markers", "full: takes long; runs if HOCKET_TEST_FULL is set, only")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("HOCKET_TEST_FULL"):
        return
    left = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish(session):
    # torch and its kind are a million objects, which each full collection would look at.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _deterministic():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT
