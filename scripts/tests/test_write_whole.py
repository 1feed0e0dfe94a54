"""How scripts write a file: whole or not at all, to regular files, through links, never over what they read."""

import errno
import importlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from charts_data import fill

SCRIPTS = Path(__file__).resolve().parents[1]
GPU = Path(__file__).parent / "data" / "ingest" / "day49-h200.jsonl"
sys.path.insert(0, str(SCRIPTS))
SYNC = importlib.import_module("sync_common")
NOBODY = 65534


def write(path, content="new", inputs=()):
    SYNC.write_whole(path, content, inputs)


@pytest.fixture(scope="session")
def device(tmp_path_factory):
    """A device like /dev/null. Root makes one, because a fault in what is tested here would destroy the machine's."""
    if os.geteuid():
        return Path("/dev/null")
    made = tmp_path_factory.mktemp("device") / "null"
    try:
        os.mknod(made, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("root without the right to make a device")
    return made


def refusal(path, *parts, inputs=()):
    """Assert that writing is refused with the file's name, and leaves no other file behind."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    with pytest.raises(OSError) as error:
        write(path, inputs=inputs)
    assert error.value.filename == str(path)
    for part in parts:
        assert part in error.value.strerror
    if before is not None:
        assert sorted(path.parent.iterdir()) == before


# ---- the function ----------------------------------------------------------------------------------------------------


def test_text_and_bytes_new_and_replaced(tmp_path):
    path = tmp_path / "file"
    write(path, "\u00e9\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    write(path, b"\x00\r\n")
    assert path.read_bytes() == b"\x00\r\n" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_of_any_new_file_and_an_old_one_keeps_its_own(tmp_path, umask, mode):
    path = tmp_path / "file"
    before = os.umask(umask)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        path.chmod(0o751)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o751
    finally:
        os.umask(before)


def test_links_stay_and_what_they_lead_to_is_written(tmp_path):
    (tmp_path / "deep").mkdir()
    target, link, over = tmp_path / "deep" / "target", tmp_path / "link", tmp_path / "over"
    link.symlink_to("deep/target")
    over.symlink_to(link)
    for path in (link, over):  # the first time it leads to nothing
        target.unlink(missing_ok=True)
        write(path)
        assert path.is_symlink() and target.read_text() == "new" and not target.is_symlink()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "deep", link, over]


def test_a_link_to_a_folder_that_is_not_there(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone" / "file")
    refusal(link, "No such file")
    assert link.is_symlink()


def test_links_that_go_round(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(link)
    refusal(link)
    assert link.is_symlink()


def test_a_folder_a_fifo_and_a_device_are_left_alone(tmp_path, device):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-null").symlink_to(device)
    for name, what in (("folder", "is a folder"), ("fifo", "is a fifo"), ("to-null", "is a device")):
        refusal(tmp_path / name, what, "not a regular file: name one")
    assert (tmp_path / "folder").is_dir() and (tmp_path / "fifo").is_fifo() and (tmp_path / "to-null").is_symlink()
    refusal(device, "is a device")
    assert device.is_char_device()


@pytest.mark.parametrize("way", ["itself", "link", "hard link"])
def test_what_is_read_is_not_written_over(tmp_path, way):
    read, path = tmp_path / "read", tmp_path / way
    read.write_text("old")
    if way == "itself":
        path = read
    elif way == "link":
        path.symlink_to(read)
    else:
        path.hardlink_to(read) if hasattr(path, "hardlink_to") else os.link(read, path)
    refusal(path, "is read here", inputs=[tmp_path / "gone", read])
    assert read.read_text() == "old"


AS_NOBODY = """\
import os, sys
from pathlib import Path
from sync_common import write_whole
if os.geteuid() == 0:  # whom no mode stops
    os.setuid({user})
try:
    write_whole(Path({path!r}), "new")
except OSError as error:
    print(error.filename, error.strerror)
"""


def test_a_folder_that_takes_no_file(tmp_path):
    refusal(tmp_path / "gone" / "file", "No such file")
    with tempfile.TemporaryDirectory() as folder:  # which another user can reach
        os.chmod(folder, 0o755)
        shutil.copy(SCRIPTS / "sync_common.py", folder)
        path = Path(folder, "read-only", "file")
        path.parent.mkdir()
        path.write_text("old", encoding="utf-8")
        path.chmod(0o666)
        path.parent.chmod(0o555)
        words = [sys.executable, "-c", AS_NOBODY.format(user=NOBODY, path=str(path))]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.stdout == f"{path} Permission denied\n", done.stderr
        assert path.read_text(encoding="utf-8") == "old" and list(path.parent.iterdir()) == [path]
        path.parent.chmod(0o755)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as write() has it, without a name

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        refusal(path, "No space left")
    with pytest.raises(OSError, match="No space left") as error, SYNC.replacing(path) as file:
        assert file.parent == tmp_path
        full()
    assert error.value.filename == str(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("no root, or no right to mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full(full_disk):
    (full_disk / "file").write_text("old")
    with pytest.raises(OSError, match="No space left") as error:
        write(full_disk / "file", "x" * 200_000)
    assert error.value.filename == str(full_disk / "file")
    assert (full_disk / "file").read_text() == "old" and len(list(full_disk.iterdir())) == 1


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Each command that writes where it is told, up to the name of the file, and a file that it reads."""
    pytest.importorskip("plotly", reason="no plotly: scripts/lessons test installs it")
    folder = tmp_path_factory.mktemp("commands")
    database, page = folder / "bench.sqlite", fill(folder / "h200")
    words = [sys.executable, SCRIPTS / "bench_ingest.py"]
    subprocess.run([*words, "ingest", "--db", database, GPU], check=True, capture_output=True)
    root = folder / "root"
    source = next(SCRIPTS.parent.glob("day49-*/*.cu"))
    shutil.copytree(source.parent, root / source.parent.name)
    return {
        "report.py": ([sys.executable, SCRIPTS / "report.py", page, "-o"], page / "manifest.json"),
        "bench_ingest.py": ([*words, "report", "--db", database, "--format", "csv", "--out"], database),
        "bench_ingest.py parquet": ([*words, "report", "--db", database, "--format", "parquet", "--out"], database),
        "godbolt.py": (
            [sys.executable, SCRIPTS / "godbolt.py", "49", "--root", root, "--out"],
            root / source.relative_to(SCRIPTS.parent),
        ),
    }


@pytest.mark.parametrize("name", ["report.py", "bench_ingest.py", "bench_ingest.py parquet", "godbolt.py"])
def test_a_command_writes_to_regular_files_through_links_and_never_over_an_input(commands, name, tmp_path, device):
    words, read = commands[name]
    before = read.read_bytes()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "to-null").symlink_to(device)
    for path, said in (
        (device, "is a device"),
        (tmp_path / "to-null", "is a device"),
        (tmp_path / "fifo", "is a fifo"),
        (tmp_path / "folder", "is a folder"),
        (tmp_path / "gone" / "file", "No such file"),
        (read, "is read here"),
    ):
        done = subprocess.run([*words, path], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1, (path, done.stderr)
        assert f"{path}: {said}" in done.stderr and len(done.stderr.splitlines()) == 1
    assert read.read_bytes() == before and device.is_char_device()
    subprocess.run([*words, tmp_path / "link"], capture_output=True, check=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").stat().st_size > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder", "link", "target", "to-null"]


@pytest.mark.parametrize("name", ["report.py", "godbolt.py", "bench_ingest.py"])
def test_a_command_says_that_the_disk_is_full(commands, name, full_disk):
    (full_disk / "filler").write_bytes(bytes(64 << 10))
    done = subprocess.run([*commands[name][0], full_disk / "file"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{full_disk}/file: No space left on device" in done.stderr
    assert [path.name for path in full_disk.iterdir()] == ["filler"]
