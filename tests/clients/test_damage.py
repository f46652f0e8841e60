"""What a broken disk does: nothing wrong is ever served, nothing acknowledged is lost that the disk still has, and what is
refused says why. A full disk, a folder that cannot be written, a file that was cut, a bit that turned."""

import json
import os
import random
import resource
import shutil
import signal

import httpx
import pytest

from stack import StackFailed

PARTITIONS = 6
ROUNDS = 12
FLIPS = int(os.environ.get("TIDEWHEEL_FLIPS", "24"))


def payload(partition, n):
    """A payload that tells where it belongs, so that a wrong one is seen."""
    return {"partition": partition, "n": n, "pad": f"{partition}-{n}-" * 40}


def fill(client, rounds=ROUNDS, first=0):
    """Pushes to every partition, round by round; answers how many were acknowledged in each."""
    for n in range(first, first + rounds):
        items = [{"queue": "q", "partition": f"p{p}", "payload": payload(p, n)} for p in range(PARTITIONS)]
        answer = client.post("/api/v1/push", json={"items": items})
        assert answer.status_code == 201, answer.text


def read(client, partition):
    """Everything in a partition, or the error that says why not."""
    query = {"batch": 1000, "consumerGroup": f"check-{random.randrange(1 << 40):x}", "subscriptionMode": "all"}
    answer = client.get(f"/api/v1/pop/queue/q/partition/p{partition}", params=query)
    if answer.status_code == 204:
        return [], None
    if answer.status_code != 200:
        return None, f"{answer.status_code} {answer.text}"
    return [message["data"] for message in answer.json()["messages"]], None


def client_of(stack):
    return httpx.Client(base_url=stack.url, timeout=30, trust_env=False)


@pytest.fixture
def filled(own_stack):
    """A folder with data, of a server that was ended politely; with it, what it must answer."""
    stack = own_stack("filled", seal_every=0).start()
    with client_of(stack) as client:
        fill(client)
    assert stack.terminate() == 0
    return stack.data


def copy(folder, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def database(folder):
    """The largest file: the database."""
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def outcome(make, name):
    """Starts on a damaged folder and reads all of it. `refused`, `error` or `right`; anything else fails the test."""
    stack = make(name, seal_every=0)
    try:
        stack.start()
    except StackFailed as refused:
        assert refused.status not in (0, None), refused.log
        assert "panicked" not in refused.log, refused.log
        assert str(stack.data) in refused.log, f"the message does not say where: {refused.log}"
        return "refused"
    seen = "right"
    with client_of(stack) as client:
        for p in range(PARTITIONS):
            rows, error = read(client, p)
            if error is None:
                assert rows == [payload(p, n) for n in range(ROUNDS)], f"partition {p} was served wrong"
            else:
                assert error.startswith("5"), error
                seen = "error"
    assert stack.running(), stack.said()
    assert "panicked" not in stack.said(), stack.said()
    stack.kill()
    return seen


def test_a_cut_database_is_refused_or_answers_with_an_error_and_never_with_less(own_stack, filled, tmp_path):
    size = database(filled).stat().st_size
    seen = []
    for keep in (0.02, 0.3, 0.5, 0.8, 0.97):
        folder = copy(filled, tmp_path / "cut")
        os.truncate(database(folder), int(size * keep))
        seen.append(outcome(own_stack, "cut"))
    assert "right" not in seen, f"a part of the file was not missed: {seen}"


def test_a_turned_bit_is_found_and_never_served(own_stack, filled, tmp_path):
    chance = random.Random(20261201)
    size = database(filled).stat().st_size
    seen = {"refused": 0, "error": 0, "right": 0}
    for _ in range(FLIPS):
        folder = copy(filled, tmp_path / "turned")
        at, bit = chance.randrange(size), chance.randrange(8)
        with open(database(folder), "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
        seen[outcome(own_stack, "turned")] += 1
    print(seen)
    assert seen["refused"] + seen["error"] > 0, f"no flip hit anything: {seen}"


def test_a_full_disk_refuses_what_it_cannot_keep_and_keeps_what_it_acknowledged(own_stack, tmp_path, monkeypatch):
    stack = own_stack("full", seal_every=0).start()
    with client_of(stack) as client:
        fill(client)
    assert stack.terminate() == 0
    # No file may grow beyond what is there and a little: a write past it fails, as on a full disk.
    room = database(stack.data).stat().st_size + 600_000

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    stack.before_exec = limited
    stack.start()
    acknowledged, refused = ROUNDS, None
    with client_of(stack) as client:
        for n in range(ROUNDS, ROUNDS + 400):
            noise = random.Random(n).randbytes(8000).hex()
            items = [{"queue": "q", "partition": "p0", "payload": {"n": n, "noise": noise}}]
            answer = client.post("/api/v1/push", json={"items": items})
            stored = answer.status_code == 201 and answer.json()[0]["status"] == "queued"
            if not stored:
                refused = answer
                break
            acknowledged += 1
        assert refused is not None, "the disk never filled"
        assert "disk" in refused.text or "full" in refused.text or "space" in refused.text, refused.text
        rows, error = read(client, 1)
        # Reading takes a lease, which is a write; it may be refused, and must say so. What is read must be right.
        assert rows == [payload(1, n) for n in range(ROUNDS)] or "5" == error[0], (rows, error)
    assert stack.running() and "panicked" not in stack.said(), stack.said()
    stack.kill()

    stack.before_exec = None
    stack.start()
    with client_of(stack) as client:
        rows, error = read(client, 0)
        assert error is None
        numbers = [row["n"] for row in rows]
        # One that was refused may have been kept (its sender must ask); none that was acknowledged is missing.
        assert numbers[:acknowledged] == list(range(acknowledged)) and len(numbers) <= acknowledged + 1
        fill(client, rounds=1, first=900)


def test_a_folder_that_cannot_be_written_is_refused_with_its_name(own_stack, filled, tmp_path):
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    stack = own_stack("x")
    stack.data = blocked
    with pytest.raises(StackFailed) as refused:
        stack.start()
    assert refused.value.status not in (0, None) and str(stack.data) in refused.value.log

    # Somebody else's folder.
    folder = copy(filled, tmp_path / "read-only")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [folder, *folder.parents]:
        if path.stat().st_uid == os.getuid() and path != folder:
            path.chmod(path.stat().st_mode | 0o055)
    stack = own_stack("read-only")
    if os.getuid() == 0:
        # The superuser may write anywhere; a server that is somebody else may not.
        stack.before_exec = lambda: os.setuid(65534)
    with pytest.raises(StackFailed) as refused:
        stack.start()
    log = refused.value.log
    assert refused.value.status not in (0, None) and str(stack.data) in log and "panicked" not in log, log
