# SPDX-License-Identifier: Apache-2.0
"""`tests/run.py` gives each file with engines a process of its own, and names all that failed."""

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")
MARK = "engine"
ENGINE = f"import os\nimport pytest\n\npytestmark = pytest.mark.{MARK}\n\n\n"
PID = "def test_it(tmp_path):\n    open('{name}', 'w').write(str(os.getpid()))\n"
ENGINES = {f"test_engine_{name}.py": ENGINE + PID.format(name=name) for name in "ab"}
PLAIN = {f"test_plain_{name}.py": "import os\n\n\n" + PID.format(name=name) for name in "cd"}
FAILING = {
    "test_engine_fails.py": ENGINE + "def test_wrong():\n    assert not 'right'\n",
    "test_engine_dies.py": ENGINE + "def test_last():\n    os.abort()\n",
    "test_engine_errs.py": ENGINE + "def test_stray(no_such_fixture):\n    pass\n",
}


def run(folder: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """Exit status, and the lines behind the last process."""
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, str(RUN), "--seed=3", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split("\n\n")[-1].splitlines()


def test_each_file_with_engines_has_a_process_and_one_without_tests_fails_nothing(tmp_path):
    code, (total,) = run(tmp_path, ENGINES)
    assert code == 0
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()
    assert total.startswith("2 passed in 3 processes") and total.endswith("seed 3")


def test_other_tests_share_a_process_and_all_failures_are_named_at_the_end(tmp_path):
    code, (*listed, total) = run(tmp_path, FAILING | PLAIN)
    assert code == 1
    assert (tmp_path / "c").read_text() == (tmp_path / "d").read_text()
    assert set(listed) >= {
        "FAILED test_engine_fails.py::test_wrong",
        "FAILED test_engine_errs.py::test_stray",
        "FAILED test_engine_dies.py engine: pytest ended with -6",
    }
    assert "2 passed" in total and "1 failure" in total and "1 error" in total
