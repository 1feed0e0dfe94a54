"""scripts/profile.sh and scripts/counters.py: on a machine with a fake GPU and profiler, each refusal planted."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "profile.sh"
sys.path.insert(0, str(SCRIPTS))
COUNTERS = importlib.import_module("counters")

NAMES = " ".join(counters for _, counters in COUNTERS.PASSES).split()

# Each fake reads what it plays from the folder it lies in.
FAKES = {
    "nvidia-smi": 'cat "$here/mig"\n',
    "ncu": """\
echo "$*" >>"$here/ncu.log"
value=1,024; [ "$LC_ALL" = C ] || value=1.024 # as under a German locale
case "$1" in
  --version) echo "NVIDIA (R) Nsight Compute"; echo "Version $(cat "$here/version") (build 1)"; exit ;;
  --query-metrics) cat "$here/metrics"; exit "$(cat "$here/query-exit" 2>/dev/null || echo 0)" ;;
esac
if [ -e "$here/ncu-says" ]; then cat "$here/ncu-says"; exit "$(cat "$here/ncu-exit" 2>/dev/null || echo 0)"; fi
echo "==PROF== Connected to process 7 ($PWD/fake)"
for word; do
  case "$word" in *.sum*) metrics=$(echo "$word" | tr , ' ') ;; esac
  [ "$word" = --profile ] && "$last" --profile
  last=$word
done
head='"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
if [ -e "$here/rules" ]; then
  head=$head',"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
  rule=',"","","","",""'
fi
echo "$head"
[ -e "$here/rules" ] && cat "$here/rules"
for metric in $metrics; do echo "\\"0\\",\\"vectorAdd(float *, int)\\",\\"$metric\\",\\"byte\\",\\"$value\\"$rule"; done
""",
    "roofline": 'echo "profile mode $1"\n',
}


class Machine:
    """A folder of fakes, first on PATH."""

    def __init__(self, folder):
        self.bin, self.out = folder / "bin", folder / "out"
        self.bin.mkdir()
        for name, text in FAKES.items():
            self.fake(name, f'#!/bin/sh\nhere=$(cd "$(dirname "$0")" && pwd)\n{text}').chmod(0o755)
        self.fake("mig", "Disabled\n")
        self.fake("version", "2025.3.1.0")
        self.know(NAMES)

    def fake(self, name, text):
        path = self.bin / name
        path.write_text(text)
        return path

    def know(self, names):
        """Let the chip have these counters, and others."""
        head = "Device NVIDIA H200 (GH100)\n-----------  -------\nMetric Name  Metric Type  Description\n"
        known = [spelling.partition(".")[0] for name in names for spelling in name.split("|")]
        self.fake("metrics", head + "".join(f"{name}   Counter   byte   # of something\n" for name in known))

    def run(self, *arguments, code=0, **environment):
        kept = {key: value for key, value in os.environ.items() if key not in ("CUDACXX", "CUDA_HOME", "CUDA_PATH")}
        variables = {**kept, "PATH": f"{self.bin}:{Path(sys.executable).parent}:/usr/bin:/bin", **environment}
        words = [SCRIPT, *(arguments or [self.bin / "roofline"]), "--out", self.out]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_both_passes_are_taken_and_hold_rows_alone(machine):
    output = machine.run().stdout
    assert "ncu 2025.3.1.0: taking 2 passes of roofline" in output
    assert sorted(path.name for path in machine.out.iterdir()) == [
        *("roofline-counters-inst.csv", "roofline-counters.csv")
    ]
    bytes_, instructions = (
        (machine.out / f"roofline-counters{end}.csv").read_text().splitlines() for end in ("", "-inst")
    )
    assert all(line.startswith('"') for line in bytes_ + instructions)
    assert any("dram__bytes.sum" in line for line in bytes_) and not any("smsp__" in line for line in bytes_)
    assert any("smsp__inst_executed.sum" in line for line in instructions)
    assert not any("dram__" in line for line in instructions)


def test_the_passes_leave_the_clocks_alone_and_flush_the_caches(machine):
    machine.run()
    passes = [line for line in (machine.bin / "ncu.log").read_text().splitlines() if "--metrics" in line]
    assert len(passes) == 2
    for line in passes:
        assert "--csv --print-units base --clock-control none --cache-control all --metrics " in line
        assert line.endswith("/roofline --profile")


def test_a_program_in_the_folder_of_a_day_names_its_exports_after_it(machine, tmp_path):
    folder = tmp_path / "day49-roofline"
    folder.mkdir()
    program = folder / "roofline"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    machine.run(program)
    assert (machine.out / "day49-counters.csv").is_file()


def test_names_follow_the_chip(machine):
    renamed = [name.split("|")[-1] for name in NAMES]
    machine.know(renamed)
    machine.run()
    text = (machine.out / "roofline-counters.csv").read_text()
    assert "dram__bytes_op_read.sum" in text and "dram__bytes_read.sum" not in text


def test_a_counter_that_the_chip_lacks_is_said_and_left_out(machine):
    machine.know([name for name in NAMES if not name.startswith("lts__t_bytes")])
    assert "not counted, because this chip has no such counter: lts__t_bytes.sum" in machine.run().stdout
    assert "lts__t_bytes.sum" not in (machine.out / "roofline-counters.csv").read_text()


def test_figures_are_those_of_the_c_locale_whatever_the_user_has(machine):
    machine.run(LANG="de_DE.UTF-8", LC_NUMERIC="de_DE.UTF-8", LC_ALL="de_DE.UTF-8")
    text = (machine.out / "roofline-counters.csv").read_text()
    assert '"1,024"' in text and '"1.024"' not in text


def test_the_columns_of_rules_are_taken_along(machine):
    rule = '"0","vectorAdd(float *, int)","","","","SOLBottleneck","OPT","Memory, ""DRAM"", at 9,1 %","global","12.5"\n'
    machine.fake("rules", rule)
    machine.run()
    text = (machine.out / "roofline-counters.csv").read_text()
    assert "SOLBottleneck" in text and '"1,024","","","","",""\n' in text


@pytest.mark.parametrize("name", ["de.csv", "fr.csv"])
def test_an_export_of_another_locale_has_figures(name):
    text = (SCRIPTS / "tests/data/locale" / name).read_text(encoding="utf-8")
    done = subprocess.CompletedProcess([], 0, f"==PROF== Connected\n{text}", "")
    assert COUNTERS.export(done, ["dram__bytes.sum", "gpu__time_duration.sum"]) == text
    with pytest.raises(COUNTERS.Refused, match="smsp__inst_executed.sum of copyCoalesced.* is not among its rows"):
        COUNTERS.export(done, ["dram__bytes.sum", "smsp__inst_executed.sum"])


def test_names_are_chosen_by_their_part_before_the_dot():
    chosen, lacking = COUNTERS.choose("a__b.sum c__d.sum|c__e.sum f__g.sum", {"a__b", "c__e", "f__gh"})
    assert (chosen, lacking) == (["a__b.sum", "c__e.sum"], ["f__g.sum"])


REFUSALS = {
    "permission, found by the profiler": (
        {"ncu-says": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ncu-exit": "1"},
        77,
        ("ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0", "sudo -E", "--cap-add=SYS_ADMIN"),
    ),
    "MIG": ({"mig": "Disabled\nEnabled\n"}, 77, ("this GPU is split (MIG)", "sudo nvidia-smi -mig 0")),
    "an old profiler": ({"version": "2019.5.0"}, 77, ("ncu is of version 2019.5.0, and 2020.1 or newer is needed",)),
    "no driver": (
        {"mig": "NVIDIA-SMI has failed", "metrics": "==ERROR== Failed to load the driver\n", "query-exit": "1"},
        77,
        ("names no counter: no driver, no GPU", "(Failed to load the driver)", "nvidia-smi"),
    ),
    "a chip it does not know": ({"metrics": "no GPU here\n"}, 77, ("names no counter", "nvidia-smi")),
    "an error of the profiler": (
        {"ncu-says": "==ERROR== Failed to find metric dram__x\n"},
        1,
        ("Failed to find metric dram__x",),
    ),
    "a program that fails": ({"ncu-says": "", "ncu-exit": "9"}, 1, ("ncu ended with 9",)),
    "nothing profiled": ({"ncu-says": "==PROF== nothing\n"}, 1, ("ncu counted no launch",)),
    "a figure that is none": (
        {
            "ncu-says": '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            '"0","k()","dram__bytes.sum","byte","n/a"\n'
        },
        1,
        (
            "export of ncu:2: dram__bytes.sum of k reads 'n/a', no value",
            "the pass failed\n",
        ),
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_each_refusal_has_its_reason_and_remedy_and_writes_nothing(machine, refusal):
    files, code, words = REFUSALS[refusal]
    for name, text in files.items():
        machine.fake(name, text)
    said = machine.run(code=code).stderr
    assert not [word for word in words if word not in said], said
    assert not machine.out.exists()


def test_no_profiler(machine):
    (machine.bin / "ncu").unlink()
    environment = {"CUDACXX": "", "PATH": str(machine.bin)}  # some systems have an ncu in /usr/bin
    words = [sys.executable, SCRIPT.with_name("counters.py"), machine.bin / "roofline", "--out", machine.out]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "neither on PATH nor beside nvcc" in done.stderr) == (77, True), done.stderr


def test_administrators_alone_are_known_before_trying(machine, monkeypatch, tmp_path, capsys):
    parameters = tmp_path / "params"
    parameters.write_text("X: 0\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(COUNTERS, "DRIVER_PARAMETERS", parameters)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    words = [str(machine.bin / "roofline"), "--out", str(machine.out)]
    assert COUNTERS.main(words) == 77
    said = capsys.readouterr().err
    assert "RmProfilingAdminOnly: 1" in said and "NVreg_RestrictProfilingToAdminUsers=0" in said
    assert "--metrics" not in (machine.bin / "ncu.log").read_text()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert COUNTERS.main(words) == 0


def test_a_profiler_that_hangs_is_stopped(machine, monkeypatch, capsys):
    machine.fake("roofline", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(COUNTERS, "RUN_LIMIT_S", 0.5)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    machine.fake("ncu", (machine.bin / "ncu").read_text().replace('echo "==PROF==', 'exec sleep 60\necho "==PROF=='))
    assert COUNTERS.main([str(machine.bin / "roofline"), "--out", str(machine.out)]) == 1
    assert "not done after 0.5 s" in capsys.readouterr().err


def test_a_day_that_is_built_is_found_and_another_named(tmp_path):
    built = tmp_path / "build/gpu/day30-roofline"
    built.mkdir(parents=True)
    (built / "roofline").write_text("")
    (tmp_path / "build/gpu/days.txt").write_text("day30-roofline/roofline\nday49-roofline/roofline\n")
    assert COUNTERS.find_program("30", tmp_path) == (built / "roofline", "day30")
    with pytest.raises(
        COUNTERS.Refused, match="day 49 is not built for the GPU: .* build/gpu, build/t4\nBuild it first"
    ):
        COUNTERS.find_program("49", tmp_path)


def test_a_day_of_the_preset_for_the_t4_is_found(tmp_path):
    built = tmp_path / "build/t4/day49-roofline"
    built.mkdir(parents=True)
    (built / "roofline").write_text("")
    (tmp_path / "build/t4/days.txt").write_text("day49-roofline/roofline\n")
    assert COUNTERS.find_program("49", tmp_path) == (built / "roofline", "day49")


def test_the_presets_are_those_that_build_for_a_gpu():
    presets = json.loads((SCRIPTS.parent / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
    on_gpu = {"gpu"}
    for preset in presets:
        if preset.get("inherits") in on_gpu:
            on_gpu.add(preset["name"])
    assert on_gpu == set(COUNTERS.GPU_PRESETS)


def test_without_a_profiler_a_day_that_is_not_built_is_a_skip_too(machine):
    (machine.bin / "ncu").unlink()
    machine.run("99", code=77, CUDACXX="")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_named(machine, full_disk):
    with open("/dev/full", "w", encoding="utf-8") as full:
        words = [SCRIPT, machine.bin / "roofline", "--out", machine.out]
        environment = {**os.environ, "PATH": f"{machine.bin}:/usr/bin:/bin", "CUDACXX": ""}
        done = subprocess.run(words, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "stdout: No space left on device\n")
    machine.out = full_disk
    said = machine.run(code=1).stderr
    assert said == f"{full_disk}/roofline-counters.csv: No space left on device\n"
    assert not [path for path in full_disk.iterdir() if path.name != "filler"]


def test_bad_usage(machine):
    assert "no program to run" in machine.run(machine.bin / "none", code=1).stderr
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage: scripts/profile.sh" in done.stderr
