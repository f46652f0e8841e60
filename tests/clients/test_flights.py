"""The main job on a slice of the flights: a worker and the server die on the way, and every result is compared."""

import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).resolve().parent


def test_the_main_job_on_a_slice(binary, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "flights.job",
            "--binary",
            binary,
            "--data",
            tmp_path / "data",
            "--rows",
            "6000",
            "--lease",
            "5",
            "--batch",
            "500",
            "--push-batch",
            "100",
            "--seal-every",
            "1",
        ],
        cwd=CLIENTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout and "PASS  DuckDB: each flight once" in done.stdout
