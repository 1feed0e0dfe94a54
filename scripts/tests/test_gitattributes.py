"""A clone has the bytes that were committed, whatever git on the host is set to do with line ends."""

import shutil
import subprocess

import pytest
from conftest import SOURCE_DIR

# core.autocrlf=true is what Git for Windows installs with; core.eol=crlf is its other way to ask for the same.
SETTINGS = [["core.autocrlf=true"], ["core.eol=crlf"]]
ODD = {
    "crlf.csv": b"a\r\nb\r\n",
    "mixed.csv": b"a\r\nb\n",
    "utf16.csv": "a\n".encode("utf-16"),
    "bom": b"\xef\xbb\xbfa\n",
}


def git(folder, *arguments):
    words = ["git", "-c", f"safe.directory={SOURCE_DIR}", "-c", f"safe.directory={SOURCE_DIR / '.git'}"]
    words += ["-c", "user.name=test", "-c", "user.email=test@example.invalid", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def files():
    """Return the files that git tracks or would track, by path."""
    if not shutil.which("git") or not (SOURCE_DIR / ".git").exists():
        pytest.skip(f"{SOURCE_DIR} is no git repository, or there is no git: the list of files is unknown")
    listed = git(SOURCE_DIR, "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    return {name: (SOURCE_DIR / name).read_bytes() for name in listed if name and (SOURCE_DIR / name).is_file()}


def cloned(folder, files, settings):
    """Commit files in a repository of their own and return what a clone with these settings holds."""
    source = folder / "source"
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    git(folder, "init", "-q", source)
    git(source, *[word for setting in settings for word in ("-c", setting)], "add", "-A", "--force")
    git(source, "commit", "-q", "-m", "all of it")
    git(folder, "clone", "-q", *[word for setting in settings for word in ("-c", setting)], source, folder / "clone")
    return {name: (folder / "clone" / name).read_bytes() for name in files}


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
def test_a_clone_has_the_bytes_that_were_committed(files, settings, tmp_path):
    odd = {f"scripts/tests/data/planted/{name}": data for name, data in ODD.items()}
    there = cloned(tmp_path, {**files, **odd}, settings)
    assert [name for name, data in {**files, **odd}.items() if there[name] != data] == []


def test_without_the_attributes_it_would_not(files, tmp_path):
    few = {name: data for name, data in files.items() if name.startswith(("scripts/lessons", "profile/h200/manifest"))}
    there = cloned(tmp_path, few, ["core.autocrlf=true"])
    assert few and all(b"\r\n" in there[name] for name in few)


def test_no_text_is_committed_with_carriage_returns(files):
    kept = ("scripts/tests/data/",)
    assert [name for name, data in files.items() if b"\r" in data and not name.startswith(kept)] == []
