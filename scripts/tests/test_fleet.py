"""scripts/fleet.py: with and without a launcher, and with every way in which a rank can get lost."""

import importlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "fleet.py"
RECORDED = Path(__file__).parent / "data" / "ingest" / "day49-h200.jsonl"
SCHEMA = json.loads((SCRIPTS / "schema" / "row.schema.json").read_text())
LINES = len(RECORDED.read_text().splitlines())

sys.path.insert(0, str(SCRIPTS))
FLEET = importlib.import_module("fleet")

# A day that prints what day 49 printed on an H200, as a card whose UUID begins with the device's number. It runs long
# enough that runs which start together overlap. FAULT is "DEVICE WHAT".
DAY = """\
#!/bin/bash
while (($#)); do case $1 in --device) device=$2 ;; esac; shift; done
if ((device >= ${DEVICES:-8})); then
  if ((${DEVICES:-8} == 1)); then echo "--device $device is out of range: valid is 0" >&2
  else echo "--device $device is out of range: valid is 0 to $((${DEVICES:-8} - 1))" >&2; fi
  exit 2
fi
head -n 5 RECORDED | sed "s/GPU-......../GPU-0000000$device/"
if [[ ${FAULT%% *} == "$device" ]]; then
  case ${FAULT#* } in
    dies) kill -KILL $$ ;;
    kills-its-rank) kill -KILL $PPID ;;
    fails) echo "FAILED planted" >&2; exit 1 ;;
    hangs) exec sleep 60 ;;
  esac
fi
sleep ${SLEEP:-0.4}
sed 1,5d RECORDED
"""


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    """Return the made-up day's program."""
    program = tmp_path_factory.mktemp("day") / "roofline"
    program.write_text(DAY.replace("RECORDED", f"'{RECORDED}'"))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def mpirun():
    """Return mpirun's command; a test that needs it is skipped where there is none."""
    found = shutil.which("mpirun")
    if not found:
        pytest.skip("no mpirun: apt-get install openmpi-bin")
    return [found, "--oversubscribe", "--enable-recovery"]


def start(*command, code=0, **environment):
    """Run a command and return the result; several codes may be right. No launcher's variables come from outside."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "SLURM_"))}
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # in a container, tests may be root
    environment = {key: str(value) for key, value in environment.items()}
    done = subprocess.run(
        list(map(str, command)),
        env={**kept, **allowed, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stdout + done.stderr
    return done


def fleet(*arguments, **more):
    return start(sys.executable, SCRIPT, *arguments, **more)


def records(file):
    """Return the records of a file, each held to the schema."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(validator.is_valid(record) for record in found)
    return found


def fleets(out):
    """Return the fleet records of a folder in order of rank and card, after a look at the files."""
    found = []
    for file in out.glob("*.jsonl"):
        run, record, *rest = records(file)
        assert (run["record"], record["record"], len(rest)) == ("run", "fleet", LINES - 1)
        place = f"day49-{record['mode']}-rank{record['rank']:04}of{record['ranks']:04}"
        card = f"-card{record['card']}of{record['cards']}" * (record["cards"] > 1)
        assert file.name == f"{place}{card}-{run['uuid'][4:12]}-{record['launch']}.jsonl"
        found.append(record)
    return sorted(found, key=lambda record: (record["rank"], record["card"]))


def spans(found):
    return sorted((record["began"], record["began"] + record["seconds"]) for record in found)


def run_card(program, out):
    """Run a program as the only card and return what went wrong."""
    place = {"mode": "solo", "rank": 0, "ranks": 1, "card": 0, "cards": 1, "launch": "x"}
    return FLEET.run_card([str(program)], 0, place, out, 60)


def test_a_full_disk_is_named(day, full_disk):
    said = run_card(day, full_disk)
    assert said.startswith("failed with exit code")
    assert said.endswith(f"; its lines are in {full_disk}/solo-rank0000of0001-x.part")


def test_a_disk_that_is_full_when_the_program_is_through(full_disk, tmp_path):
    run = RECORDED.read_text().splitlines()[0]
    (tmp_path / "run").write_text(f'{run[:-1]},"pad":"{"x" * (4000 - len(run))}"}}\n')  # all but full with this line
    program = tmp_path / "brief"
    program.write_text(f"#!{shutil.which('sh')}\nrm '{full_disk}/filler'\ncat '{tmp_path}/run'\n")
    program.chmod(0o755)
    assert run_card(program, full_disk) == f"{full_disk}/solo-rank0000of0001-x.part: No space left on device"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_verdict_that_cannot_be_printed(day, tmp_path):
    fleet("run", "--out", tmp_path / "out", day, DEVICES=1)
    with open("/dev/full", "w", encoding="utf-8") as full:
        words = [sys.executable, SCRIPT, "check", tmp_path / "out"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "stdout: No space left on device\n")


# ---- without a launcher


def test_alone_it_runs_every_card_at_once(day, tmp_path):
    done = fleet("run", "--out", tmp_path / "out", day, DEVICES=3)
    found = fleets(tmp_path / "out")
    assert [(record["rank"], record["card"], record["node_cards"]) for record in found] == [(0, n, 3) for n in range(3)]
    assert max(begin for begin, _ in spans(found)) < min(end for _, end in spans(found))
    assert re.search(r"together, 3 runs complete, all at once for [1-9]\d* % of the time", done.stdout)


def test_solo_it_runs_them_one_after_another(day, tmp_path):
    fleet("run", "--solo", "--out", tmp_path / "out", day, DEVICES=3)
    found = fleets(tmp_path / "out")
    assert len(found) == 3 and {record["mode"] for record in found} == {"solo"}
    # The end is rounded to a millisecond.
    assert all(end <= begin + 0.002 for (_, end), (begin, _) in itertools.pairwise(spans(found)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "killed by signal 9 (SIGKILL)"),
        ("fails", "failed with exit code 1: FAILED planted"),
        ("hangs", "hung, and was killed after 2 s"),
    ],
)
def test_alone_a_lost_card_is_named_and_the_others_kept(day, tmp_path, fault, said):
    out = tmp_path / "out"
    done = fleet("run", "--timeout", 2, "--out", out, day, DEVICES=2, FAULT=f"1 {fault}", code=1)
    (part,) = out.glob("*.part")
    where = "" if fault == "hangs" else f"; its lines are in {part}"
    assert done.stderr == f"rank 0 of 1, card 1 of 2, device 1: {said}{where}\n"
    assert [record["card"] for record in fleets(out)] == [0]
    assert len(part.read_text().splitlines()) == 5  # how far it came
    done = fleet("check", out, code=1)
    assert done.stderr.splitlines() == [
        "rank 0 of 1, card 1 of 2: no whole file: it died, hung or failed a check",
        f"{part}: what a run without an end printed",
    ]


def test_no_host_name_is_written_unless_asked_for(day, tmp_path, monkeypatch):
    fleet("run", "--out", tmp_path / "private", day, DEVICES=1)
    fleet("run", "--host", "--out", tmp_path / "named", day, DEVICES=1)
    (private,), (named,) = (fleets(tmp_path / name) for name in ("private", "named"))
    assert "host" not in private and named["host"] == socket.gethostname()
    assert private["node"] == named["node"]
    # Made of the boot id alone, which has nothing of the name.
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert FLEET.find_node() == private["node"]


def test_a_folder_is_for_one_launch(day, tmp_path):
    fleet("run", "--out", tmp_path, day, DEVICES=1)
    before = sorted(tmp_path.iterdir())
    assert "of another launch" in fleet("run", "--out", tmp_path, day, DEVICES=1, code=2).stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no such program", "No such file"),
        ("#!/bin/sh\necho hello", "is no day, or has no GPU to run on: it says no more"),
        ("#!/bin/sh\necho no driver >&2; exit 77", "has no GPU to run on: no driver"),
        (
            "#!/bin/sh\ncase $* in *9999) echo 'valid is 0' >&2; exit 2;; *) echo '{}';; esac",
            "the first line is no run record: b'{}'",
        ),
    ],
)
def test_what_is_no_day_is_named(tmp_path, program, said):
    file = tmp_path / "program"
    if program.startswith("#!"):
        file.write_text(program)
        file.chmod(0o755)
    assert said in fleet("run", "--out", tmp_path / "out", file, code=1).stderr
    assert list((tmp_path / "out").glob("*.jsonl")) == []


def test_check_says_what_is_no_fleet(tmp_path):
    assert "no rank left a whole file" in fleet("check", tmp_path, code=1).stderr
    shutil.copy(RECORDED, tmp_path)
    assert "no fleet record in its second line" in fleet("check", tmp_path, code=1).stderr


def test_two_ranks_on_one_card_are_named(day, tmp_path):
    fleet("run", "--out", tmp_path, day, DEVICES=2)
    (second,) = tmp_path.glob("*card1of2*")
    second.write_text(second.read_text().replace("GPU-00000001", "GPU-00000000"))
    assert "ranks 0, 0 ran on one card, GPU-00000000-" in fleet("check", tmp_path, code=1).stderr


# ---- which rank a process is

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "PMIX_NAMESPACE": "prterun-node7-123@1",
}
SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "12",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3,1",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}


def test_open_mpi_s_ranks():
    place = FLEET.find_place(OPEN_MPI)
    assert (place.rank, place.ranks, place.local_rank, place.local_ranks) == (9, 16, 1, 8)
    assert place.launch == FLEET.find_place({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "3"}).launch
    assert place.launch != FLEET.find_place({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-node7-124@1"}).launch
    assert "node7" not in place.launch
    assert FLEET.find_place({**SLURM, **OPEN_MPI}).ranks == 16  # mpirun in a Slurm job


def test_slurm_s_ranks():
    place = FLEET.find_place(SLURM)
    assert (place.rank, place.ranks, place.local_rank, place.local_ranks) == (9, 12, 1, 3)
    assert place.launch == FLEET.find_place({**SLURM, "SLURM_PROCID": "3"}).launch
    assert place.launch != FLEET.find_place({**SLURM, "SLURM_STEP_ID": "1"}).launch


def test_a_batch_script_is_no_rank():
    batch = {"SLURM_JOB_ID": "42", "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    for environment in ({}, batch):
        place = FLEET.find_place(environment)
        assert (place.rank, place.ranks, place.local_ranks, place.launched) == (0, 1, 1, False)


def test_which_devices_a_rank_takes():
    def devices(local_rank, local_ranks, visible, solo=False):
        return FLEET.devices_of(FLEET.Place("", local_rank=local_rank, local_ranks=local_ranks), visible, solo)

    assert devices(0, 1, 4) == devices(0, 1, 4, solo=True) == [0, 1, 2, 3]
    assert devices(2, 4, 4) == [2]
    assert devices(2, 4, 1) == [0]  # the launcher bound it to its own
    for wrong, said in (((2, 4, 2), "4 ranks on this node, and it has 2 devices"), ((0, 2, 2, True), "--solo is for")):
        with pytest.raises(FLEET.Stop, match=said) as stop:
            devices(*wrong)
        assert stop.value.code == 2


# ---- under Open MPI


def test_two_ranks_start_together(day, mpirun, tmp_path):
    start(*mpirun, "-n", 2, sys.executable, SCRIPT, "run", "--out", tmp_path, day)
    found = fleets(tmp_path)
    assert [(record["rank"], record["ranks"], record["node_cards"]) for record in found] == [(0, 2, 2), (1, 2, 2)]
    first, second = (record["began"] for record in found)
    assert abs(first - second) < 0.25  # a barrier, on a machine that other tests keep busy
    assert "2 runs complete, all at once for" in fleet("check", tmp_path).stdout


def test_the_barrier_waits_for_the_last(day, mpirun, tmp_path):
    late = f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then sleep 1; fi; exec "{sys.executable}" "{SCRIPT}" "$@"'
    start(*mpirun, "-n", 2, "sh", "-c", late, "sh", "run", "--out", tmp_path, day)
    first, second = (record["began"] for record in fleets(tmp_path))
    assert abs(first - second) < 0.5


@pytest.mark.parametrize("fault", ["dies", "kills-its-rank", "hangs"])
def test_of_eight_ranks_one_is_lost(day, mpirun, tmp_path, fault):
    """Seven whole files, the eighth named, exit code 1, and all of it comes in once."""
    solo, together, db = tmp_path / "solo", tmp_path / "together", tmp_path / "bench.sqlite"
    fleet("run", "--solo", "--out", solo, day, DEVICES=2)
    words = [sys.executable, SCRIPT, "run", "--timeout", 3, "--out", together, day]
    # With --enable-recovery, without which a rank that is killed ends all, Open MPI 4 returns 0 whatever became of its
    # ranks, and Open MPI 5 the code of one that failed.
    done = start(*mpirun, "-n", 8, *words, FAULT=f"3 {fault}", code=(0, 1))
    if fault != "kills-its-rank":
        assert "rank 3 of 8, device 3: " in done.stderr
    assert [record["rank"] for record in fleets(together)] == [0, 1, 2, 4, 5, 6, 7]
    done = fleet("check", together, code=1)
    assert done.stderr.startswith("rank 3 of 8: no whole file")
    assert "together, 7 runs complete" in done.stdout

    ingest = [sys.executable, SCRIPTS / "bench_ingest.py", "ingest", "--db", db, tmp_path]
    assert f"runs added: 9 ({9 * (LINES + 1)} records), there already: 0" in start(*ingest).stdout
    before = db.read_bytes()
    assert "runs added: 0 (0 records), there already: 9" in start(*ingest).stdout
    assert db.read_bytes() == before


def test_without_recovery_a_rank_that_fails_leaves_last_and_mpirun_says_so(day, mpirun, tmp_path):
    words = [word for word in mpirun if word != "--enable-recovery"]
    words += ["-n", 4, sys.executable, SCRIPT, "run", "--out", tmp_path, day]
    done = start(*words, FAULT="2 dies", SLEEP=2, code=1)
    assert "rank 2 of 4, device 2: killed by signal 9" in done.stderr
    assert [record["rank"] for record in fleets(tmp_path)] == [0, 1, 3]


def test_the_lines_of_the_page_are_those_that_work(day, mpirun, tmp_path):
    page = (SCRIPTS / "README.md").read_text().splitlines()
    commands = [line for line in page if line.startswith(("mpirun ", "scripts/fleet.py check"))]
    assert len(commands) == 4
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    for command in commands:
        for old, new in (
            ("--map-by ppr:8:node", "--oversubscribe -n 2"),
            ("--map-by ppr:1:node", "--oversubscribe -n 1"),
            ("build/gpu/day49-roofline/roofline", str(day)),
        ):
            command = command.replace(old, new)
        start("bash", "-c", f'cd "{tmp_path}" && {command}', DEVICES=2)
    assert [len(fleets(tmp_path / "fleet" / mode)) for mode in ("solo", "together")] == [2, 2]


# ---- under Slurm, which is not here: a stand-in starts the tasks with its variables

SRUN = """\
#!/bin/bash
tasks=1
while [[ $1 == --* ]]; do case $1 in --ntasks-per-node=*) tasks=${1#*=} ;; esac; shift; done
step=$(ls "$STEPS" | wc -l)
touch "$STEPS/$step"
export SLURM_STEP_ID=$step SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_TASKS_PER_NODE=$tasks SLURM_NODEID=0
for ((rank = 0; rank < tasks; ++rank)); do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & done
wait
"""


@pytest.mark.parametrize("fault", [None, "1 dies"])
def test_the_batch_file_runs_solo_and_together(day, tmp_path, fault):
    (tmp_path / "steps").mkdir()
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    environment = {"SLURM_JOB_ID": 42, "SLURM_GPUS_ON_NODE": 2, "STEPS": tmp_path / "steps", "DEVICES": 2}
    environment.update(PATH=f"{tmp_path}:{os.environ['PATH']}", FAULT=fault or "")
    batch = f'cd "{tmp_path}" && exec bash scripts/fleet.sbatch "{day}"'
    done = start("bash", "-c", batch, code=1 if fault else 0, **environment)
    out = tmp_path / "fleet-42"
    assert "no barrier: the launcher serves no PMIx (srun: --mpi=pmix)" in done.stderr  # the stand-in has none
    assert len(fleets(out / "solo")) == len(fleets(out / "together")) == (1 if fault else 2)
    assert ("rank 1 of 2: no whole file" in done.stderr) == (fault is not None)


# ---- a real day


def test_a_day_built_for_the_cpu_runs_its_checks(build_dir, tmp_path):
    program = build_dir / "day56-graphs" / "graphs"
    if not program.is_file():
        pytest.skip(f"{program} is not built")
    if "CUDA_DAYS_BACKEND:STRING=cpu" not in (build_dir / "CMakeCache.txt").read_text():
        pytest.skip(f"{build_dir} is not a build for the CPU")
    assert "run it with --check" in fleet("run", "--out", tmp_path / "timed", program, code=1).stderr
    fleet("run", "--check", "--out", tmp_path / "out", program)
    (file,) = (tmp_path / "out").iterdir()
    run, record, *checks = records(file)
    assert (run["backend"], record["day"], record["mode"]) == ("cpu", 56, "together")
    assert {check["record"] for check in checks} == {"check"}


def test_bad_usage(tmp_path):
    for arguments in (
        [],
        ["run"],
        ["run", "--out", tmp_path],
        ["check"],
        ["run", "--out", tmp_path, "--timeout", 0, "x"],
    ):
        fleet(*arguments, code=2)
