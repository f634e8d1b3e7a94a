# SPDX-License-Identifier: Apache-2.0
"""Starting and ending a server's processes, with small stand-ins for vLLM's three."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_eagle_pangu.measure.server import COUNTER, ProcessGroup, Server, free_port, log_excerpt

# A parent that starts a child, tells its number, and waits: like an API server with its engine.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
WILLING = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)"
)


def start_family(child: str, folder: Path) -> tuple[ProcessGroup, int]:
    """A parent and its child in a group of their own; the child's number."""
    command = [sys.executable, "-c", FAMILY.format(child=child)]
    group = ProcessGroup(command, dict(os.environ), folder / "log")
    while not group.log.read_text().strip():
        assert group.process.poll() is None, log_excerpt(group.log)
    return group, int(group.log.read_text())


def started(server: Server) -> ProcessGroup:
    assert server.group is not None
    return server.group


def running(number: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("child", [WILLING, STUBBORN], ids=["willing", "ignores SIGTERM"])
def test_stop_ends_parent_and_child(child: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vllm_eagle_pangu.measure.server.STOP_TIMEOUT_S", 1.0)
    group, number = start_family(child, tmp_path)
    assert running(number)

    group.stop()

    assert not running(number)
    assert group.process.poll() is not None


def test_a_child_left_by_a_dead_parent_is_ended_too(tmp_path: Path):
    group, number = start_family(WILLING, tmp_path)
    group.process.kill()
    group.process.wait()
    assert running(number)

    group.stop()

    assert not running(number)


def test_a_failed_start_shows_its_log_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    failing = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    server = Server("failing", tmp_path, None)
    monkeypatch.setattr(server, "command", lambda: failing)

    with pytest.raises(RuntimeError, match="'failing' did not start"), server:
        group = started(server)
        server.wait()

    assert "no such model" in capsys.readouterr().err
    assert not group.alive()
    group.log.unlink()


def test_a_served_port_is_waited_for_and_freed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "health").write_text("ok")
    server = Server("files", tmp_path, None)
    files = [sys.executable, "-m", "http.server", str(server.port), "--bind", "127.0.0.1"]
    monkeypatch.setattr(server, "command", lambda: [*files, "--directory", str(tmp_path)])

    with server:
        group = started(server.wait())
        assert group.alive()

    assert not group.alive()
    assert not group.log.exists()


def test_sigterm_to_the_demo_ends_its_server(tmp_path: Path):
    program = (
        "import signal, sys\n"
        "from vllm_eagle_pangu.demo.run import ended_by_sigterm\n"
        "from vllm_eagle_pangu.measure.server import Server\n"
        "server = Server('idle', '.', None)\n"
        "server.command = lambda: [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "with ended_by_sigterm(), server:\n"
        "    print(server.group.process.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    demo = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    number = int(demo.stdout.readline())
    assert running(number)

    demo.send_signal(signal.SIGTERM)

    assert demo.wait(600) == 128 + signal.SIGTERM
    assert not running(number)


def test_the_command_serves_on_loopback_with_the_given_speculation(tmp_path: Path):
    plain = Server("plain", tmp_path, None).command()
    chain = Server("chain", tmp_path, {"method": "eagle3"}).command()

    assert plain[1:3] == ["serve", str(tmp_path)]
    assert "--host=127.0.0.1" in plain
    assert "--speculative-config" not in plain
    assert chain[-2:] == ["--speculative-config", '{"method": "eagle3"}']


def test_free_port_can_be_bound():
    assert 1024 <= free_port() < 65536


def test_counters_are_read_from_prometheus_text():
    page = (
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 40.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.7e9\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 480.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 100.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 30.0\n'
    )
    assert dict(COUNTER.findall(page)) == {"drafts": "40.0", "accepted_tokens": "100.0"}
