"""The README's commands do what it says: each block with a `tested:` mark is taken from the page and run."""

import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from flights import tables

README = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"<!-- tested: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
ADDRESS = "127.0.0.1:6632"


def shell(script, **environment):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


def test_every_mark_has_a_test():
    assert set(BLOCKS) == {"serve", "try", "table", "demo", "test", "bench", "sdk", "deploy", "relay", "price"}
    assert README.count("<!-- tested:") == len(BLOCKS)


def test_the_command_that_starts_it(binary, tmp_path):
    command = BLOCKS["serve"].strip()
    prefix = "cargo run --release --package tidewheel -- "
    assert command.startswith(prefix)
    process = subprocess.Popen(
        [str(binary), *command.removeprefix(prefix).split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TIDEWHEEL_LISTEN": "127.0.0.1:0"},
    )
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("listening on "):
                break
        assert said and said[-1].startswith("listening on http://127.0.0.1:"), said
        assert (tmp_path / "data").is_dir(), "data is ./data unless told otherwise"
    finally:
        process.kill()
        process.wait()


def test_the_first_steps_and_the_table(stack):
    assert ADDRESS in BLOCKS["try"]
    done = shell(BLOCKS["try"].replace(f"http://{ADDRESS}", stack.url))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count('"status":"queued"') == 2
    assert '{"order": 1, "amount": 12.50}' in done.stdout and '{"order": 2, "amount": 7.25}' in done.stdout
    folder = tables.folder_of(stack.data, "orders")
    assert tables.wait_for(folder, 2, 30) >= 2
    assert "data/tables/orders" in BLOCKS["table"]
    query = BLOCKS["table"].replace("data/tables/orders", str(folder)).rstrip().rstrip(";")
    # As text, since DuckDB's Python package needs another one for times with a zone.
    rows = tables.duck().sql(f"""select "partition", "offset", "time"::varchar, payload from ({query})""").fetchall()
    assert all(time.startswith("20") for _, _, time, _ in rows)
    assert [(partition, offset, payload) for partition, offset, _, payload in rows][:2] == [
        ("eu", 0, '{"order": 1, "amount": 12.50}'),
        ("eu", 1, '{"order": 2, "amount": 7.25}'),
    ]


def test_the_sdk_example(stack):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS["sdk"].replace(f"http://{ADDRESS}", stack.url)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "{'order': 3}" in done.stdout, done.stdout


@pytest.mark.parametrize("block", ["demo", "test", "bench", "deploy"])
def test_the_commands_exist_and_explain_themselves(block):
    command = BLOCKS[block].strip()
    assert os.access(ROOT / command, os.X_OK)
    done = shell(f"{command} --help")
    assert done.returncode == 0 and len(done.stdout) > 200, done.stdout


def test_every_path_on_the_page_exists():
    paths = set(re.findall(r"\]\(((?!http)[^)#]+)\)", README)) | set(
        re.findall(r"^(\w+/[\w/]*)  ", README, re.MULTILINE)
    )
    assert len(paths) > 8
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_the_prices_are_what_the_program_prints(binary):
    assert BLOCKS["price"].strip() == "cargo run --package tidewheel-tests --bin price"
    printed = subprocess.run([binary.parent / "price"], check=True, stdout=subprocess.PIPE, text=True).stdout
    table = printed.split("\n\n", 1)[1]
    assert table.count("\n") > 10 and table in README
