"""Published tables, as DuckDB and PyIceberg see them."""

import json

import pytest
from pyiceberg.table import StaticTable

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
