"""The HTTP part of the main job through the HTTP function's real binary: a slice of the real flights is pushed, windowed
by the published SDK and drained, a worker and processes of the function die on the way, and every result is compared with
the source."""

import subprocess
import threading
from pathlib import Path

from background import Background
from table import make
from world import World

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
PATIENCE = 600


def test_the_main_job_through_the_http_function(binaries, endpoints, tmp_path):
    # The job's own clients, with the data set: what the local stack is tested with.
    python = subprocess.run([CLIENTS / "install"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    table, bucket = make(endpoints)
    background = Background(lambda: World(binaries, endpoints, table, bucket, tmp_path))
    with background as world:
        options = ["--no-socket", "--rows", "1500", "--lease", "5", "--batch", "250", "--push-batch", "100"]
        job = subprocess.Popen(
            [python, "-m", "flights.job", "--url", world.url, *options],
            cwd=CLIENTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ending = threading.Timer(PATIENCE, job.kill)
        ending.start()
        said, killed = [], 0
        try:
            for line in job.stdout:
                said.append(line)
                if "one worker is to die" in line:
                    killed = background.run(kill(world.http))
        finally:
            ending.cancel()
            job.kill()
            job.wait()
    output = "".join(said)
    print(output)
    assert "FAIL" not in output and "PASS  kill: one worker died by SIGKILL, holding a batch" in output, output
    for check in ("none came twice", "each equals the one computed from the source"):
        assert f"PASS  windows: {check}" in output, output
    assert killed > 0


async def kill(function):
    """Kills every process of a function, whatever each has in hand; answers how many there were."""
    victims = [victim for victim in function.environments if victim.process]
    for victim in victims:
        victim.kill()
    return len(victims)
