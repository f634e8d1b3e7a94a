# SPDX-License-Identifier: Apache-2.0
"""`tests/run.py` gives each file with engines a process of its own, and names all that failed."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")
ENGINE = "import os\nimport pytest\n\npytestmark = pytest.mark.engine\n\n\n"
PID = "def test_it(tmp_path):\n    open('{name}', 'w').write(str(os.getpid()))\n"
FILES = {
    "test_engine_a.py": ENGINE + PID.format(name="a"),
    "test_engine_b.py": ENGINE + PID.format(name="b"),
    "test_plain_c.py": "import os\n\n\n" + PID.format(name="c"),
    "test_plain_d.py": "import os\n\n\n" + PID.format(name="d"),
}
FAILING = {
    "test_engine_fails.py": ENGINE + "def test_wrong():\n    assert not 'right'\n",
    "test_engine_dies.py": ENGINE + "def test_last():\n    os.abort()\n",
    "test_engine_errs.py": ENGINE + "def test_stray(no_such_fixture):\n    pass\n",
}


def run(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, str(RUN), "--seed=3", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_engines_of_two_files_share_no_process_and_plain_tests_share_one(tmp_path):
    done = run(tmp_path, FILES)
    assert done.returncode == 0, done.stdout
    pids = {name: (tmp_path / name).read_text() for name in "abcd"}
    assert len(set(pids.values())) == 3 and pids["c"] == pids["d"]
    assert done.stdout.splitlines()[-1].startswith("4 passed in 3 processes")
    assert done.stdout.splitlines()[-1].endswith("seed 3")


def test_every_failure_of_every_process_is_named_at_the_end(tmp_path):
    done = run(tmp_path, FAILING | FILES)
    assert done.returncode == 1
    *listed, total = done.stdout.split("\n\n")[-1].splitlines()
    assert set(listed) >= {
        "FAILED test_engine_fails.py::test_wrong",
        "FAILED test_engine_errs.py::test_stray",
        "FAILED test_engine_dies.py engine: pytest ended with -6",
    }
    assert "4 passed" in total and "1 failure" in total and "1 error" in total


def test_a_part_without_tests_fails_nothing(tmp_path):
    done = run(tmp_path, {"test_engine_a.py": ENGINE + PID.format(name="a")})
    assert done.returncode == 0, done.stdout
    assert "no tests" not in done.stdout.splitlines()[-1]
