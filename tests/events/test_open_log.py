"""A log by URL."""

from pathlib import Path

import pytest

from batonlog.events import MemoryLog, SQLiteLog, UsageError, open_log


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("support.db", "support.db"),
        ("logs/support.db", "logs/support.db"),
        ("/var/support.db", "/var/support.db"),
        ("sqlite:///var/support.db", "/var/support.db"),
        ("sqlite://support.db", "support.db"),
        ("C:\\support.db", "C:\\support.db"),
        ("a:b.db", "a:b.db"),
        (Path("support.db"), "support.db"),
        (Path("memory:"), "memory:"),
    ],
)
def test_a_path_is_a_file(url: str | Path, path: str) -> None:
    log = open_log(url)
    assert isinstance(log, SQLiteLog)
    assert log.path == Path(path)
    assert not log.read_only


def test_memory_is_a_log_in_memory() -> None:
    assert isinstance(open_log("memory:"), MemoryLog)


def test_every_log_in_memory_is_its_own() -> None:
    assert open_log("memory:") is not open_log("memory:")


@pytest.mark.parametrize("url", ["support.db", "sqlite://support.db", Path("support.db")])
def test_a_log_may_be_opened_to_read(url: str | Path) -> None:
    log = open_log(url, read_only=True)
    assert isinstance(log, SQLiteLog)
    assert log.read_only


@pytest.mark.parametrize("url", ["mysql://host/db", "https://example.com/log", "ftp://x"])
def test_a_scheme_that_nobody_knows_is_refused_by_name(url: str) -> None:
    with pytest.raises(UsageError, match=url.partition(":")[0]):
        open_log(url)


def test_no_url_is_refused() -> None:
    with pytest.raises(UsageError, match=r"support\.db, or memory:"):
        open_log("")


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    open_log(tmp_path / "log.db")
    assert list(tmp_path.iterdir()) == []
