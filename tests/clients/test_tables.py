"""Published tables, as DuckDB and PyIceberg see them."""

import asyncio
import json
import time

import polars as pl
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType

from conftest import queen_at
from consuming import push
from flights import tables


def rows_of(folder):
    query = f'select "partition", "offset", transaction_id, payload from iceberg_scan(\'{folder}\') order by 1, 2'
    return tables.duck().sql(query).fetchall()


async def test_a_table_holds_what_was_pushed_in_the_order_of_the_log(queen, stack, name):
    await push(queen, name, range(50), partition="a", ids=[f"a{n}" for n in range(50)])
    await push(queen, name, range(30), partition="b", ids=[f"b{n}" for n in range(30)])
    folder = tables.folder_of(stack.data, name)
    assert tables.wait_for(folder, 80, 30) == 80
    wanted = [(p, n, f"{p}{n}", {"n": n}) for p, count in (("a", 50), ("b", 30)) for n in range(count)]
    assert [(p, offset, i, json.loads(payload)) for p, offset, i, payload in rows_of(folder)] == wanted


async def test_a_snapshot_stays_as_it_was_while_the_table_grows(queen, stack, name):
    folder = tables.folder_of(stack.data, name)
    await push(queen, name, range(10))
    assert tables.wait_for(folder, 10, 30) == 10
    before = StaticTable.from_metadata(str(folder)).current_snapshot().snapshot_id
    await push(queen, name, range(10, 25))
    assert tables.wait_for(folder, 25, 30) == 25
    old = tables.duck().sql(f"select count(*) from iceberg_scan('{folder}', snapshot_from_id = {before}::ubigint)")
    assert old.fetchone() == (10,)
    after = StaticTable.from_metadata(str(folder))
    assert after.current_snapshot().parent_snapshot_id == before
    assert after.scan().to_arrow().num_rows == 25


@pytest.mark.parametrize("end", ["kill", "terminate"])
async def test_no_row_is_published_twice_over_restarts(own_stack, name, end):
    stack = own_stack().start()
    folder, total = tables.folder_of(stack.data, name), 0
    for _ in range(3):
        async with queen_at(stack.url) as queen:
            await push(queen, name, range(total, total + 200))
        total += 200
        getattr(stack, end)()
        stack.start()
    assert tables.wait_for(folder, total, 30) == total
    found = rows_of(folder)
    assert [offset for _, offset, *_ in found] == list(range(total))
    assert [json.loads(payload)["n"] for *_, payload in found] == list(range(total))


def with_every_reader(folder):
    """(partition, offset) of every row as DuckDB, PyIceberg and Polars see it, each in order."""
    duck = tables.duck().sql(f'select "partition", "offset" from iceberg_scan(\'{folder}\') order by 1, 2').fetchall()
    table = StaticTable.from_metadata(str(folder))
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow().to_pylist()
    pyiceberg = sorted((row["partition"], row["offset"]) for row in rows)
    polars = pl.scan_iceberg(table).select("partition", "offset").sort("partition", "offset").collect().rows()
    return [tuple(row) for row in duck], pyiceberg, [tuple(row) for row in polars]


async def test_readers_agree_after_many_commits_and_compactions(own_stack, name):
    stack = own_stack(seal_every=0.05, environment={"TIDEWHEEL_COMPACT_EVERY": "0.4"}).start()
    folder = tables.folder_of(stack.data, name)
    total = 0
    async with queen_at(stack.url) as queen:
        for _ in range(100):
            await push(queen, name, range(total, total + 5))
            total += 5
            await asyncio.sleep(0.05)
    assert tables.wait_for(folder, total, 30) == total
    pinned = StaticTable.from_metadata(str(folder))
    files = lambda: len(list(StaticTable.from_metadata(str(folder)).scan().plan_files()))  # noqa: E731
    operations = {snapshot.summary.operation.value for snapshot in pinned.snapshots()}
    assert operations == {"append", "replace"}, operations
    deadline = time.monotonic() + 20
    while files() > 30 and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    assert files() <= 30 < len(pinned.snapshots())
    wanted = [("Default", n) for n in range(total)]
    assert with_every_reader(folder) == (wanted, wanted, wanted)
    # Whoever opened an earlier snapshot still reads all of it.
    first = min(pinned.snapshots(), key=lambda snapshot: snapshot.sequence_number)
    assert pinned.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == int(first.summary["total-records"])


async def test_files_say_what_they_hold(queen, stack, name):
    await push(queen, name, range(30))
    folder = tables.folder_of(stack.data, name)
    assert tables.wait_for(folder, 30, 30) == 30
    table = StaticTable.from_metadata(str(folder))
    field = table.schema().find_field("offset").field_id
    files = [task.file for task in table.scan().plan_files()]
    lows = sorted(from_bytes(LongType(), file.lower_bounds[field]) for file in files)
    highs = sorted(from_bytes(LongType(), file.upper_bounds[field]) for file in files)
    assert (lows[0], highs[-1]) == (0, 29)
    ids = {f.field_id for f in table.schema().fields if f.name not in ("headers", "key")}
    assert all(ids <= set(file.lower_bounds) for file in files), "every column has bounds"
    assert [table.schema().find_field(f.source_id).name for f in table.sort_order().fields] == ["partition", "offset"]


async def test_a_catalogue_is_attached_with_one_line(queen, stack, name):
    await push(queen, name, range(12))
    assert tables.wait_for(tables.folder_of(stack.data, name), 12, 30) == 12
    catalogue = load_catalog("tidewheel", type="rest", uri=f"{stack.url}/iceberg")
    assert catalogue.list_namespaces() == [("streams",)]
    assert ("streams", name) in catalogue.list_tables("streams")
    table = catalogue.load_table(("streams", name))
    assert table.scan().to_arrow().num_rows == 12
    assert catalogue.table_exists(("streams", name)) and not catalogue.table_exists(("streams", "nothing"))
    with pytest.raises(NoSuchTableError):
        catalogue.load_table(("streams", "nothing"))
    await push(queen, name, range(12, 20))
    assert tables.wait_for(tables.folder_of(stack.data, name), 20, 30) == 20
    assert catalogue.load_table(("streams", name)).scan().to_arrow().num_rows == 20
    duck = tables.duck()
    duck.sql(f"attach '' as t (type iceberg, endpoint '{stack.url}/iceberg', authorization_type 'none')")
    assert duck.sql(f'select count(*) from t.streams."{name}"').fetchone() == (20,)
