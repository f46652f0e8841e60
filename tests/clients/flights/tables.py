"""The published table of a stream, read by DuckDB and by PyIceberg, neither of which knows the server."""

import json
import os
import time
from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
from pyiceberg.table import StaticTable

from . import source

PAUSE_SECONDS = 0.5
COLUMNS = ["partition", "offset", "time", "id", "transaction_id", "key", "headers", "payload"]


def duck():
    """A connection that reads Iceberg without the network: the extensions come from Python packages."""
    connection = duckdb.connect()
    connection.sql("set autoinstall_known_extensions = false")
    connection.sql("set autoload_known_extensions = false")
    for package in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
        name = package.__name__.removeprefix("duckdb_extension_")
        folder = Path(os.path.dirname(package.__file__)) / "extensions" / f"v{duckdb.__version__}"
        connection.sql(f"load '{folder / name}.duckdb_extension'")
    return connection


def folder_of(data, stream):
    return Path(data) / "tables" / stream


def published(folder):
    """Rows in the table now; 0 before there is one."""
    if not (folder / "metadata" / "version-hint.text").exists():
        return 0
    try:
        return duck().sql(f"select count(*) from iceberg_scan('{folder}')").fetchone()[0]
    except duckdb.IOException:  # between the creation of a table and its first snapshot
        return 0


def wait_for(folder, rows, seconds):
    """Sealing is periodic: polls until the table holds that many rows. Returns what it holds in the end."""
    deadline = time.monotonic() + seconds
    while True:
        found = published(folder)
        if found >= rows or time.monotonic() > deadline:
            return found
        time.sleep(PAUSE_SECONDS)


def with_duckdb(folder):
    """What an analyst would ask, in SQL."""
    connection = duck()
    connection.sql("set timezone = 'UTC'")
    connection.sql(f"""
        create view flights as
        select "partition", "offset", "time", cast(payload ->> 'row' as bigint) as row, payload ->> 'carrier' as carrier,
               payload ->> 'time_hour' as time_hour, cast(payload ->> 'dep_delay' as bigint) as dep_delay,
               payload ->> 'closing' is not null as closing
        from iceberg_scan('{folder}')
    """)
    rows, distinct, departed, delays = connection.sql(
        "select count(*), count(distinct row), count(dep_delay), sum(dep_delay) from flights where not closing"
    ).fetchone()
    dense = connection.sql(
        """select count(*) from (select "partition", min("offset") as low, max("offset") as high, count(*) as n,
           count(distinct "offset") as each from flights group by all) where low = 0 and high = n - 1 and each = n"""
    ).fetchone()[0]
    windows = connection.sql(
        """select "partition", carrier, epoch_ms(time_hour::timestamptz), count(*), coalesce(sum(dep_delay), 0),
           max(dep_delay) from flights where not closing group by all"""
    ).fetchall()
    return {
        "columns": [
            name for name, *_ in connection.sql(f"describe select * from iceberg_scan('{folder}')").fetchall()
        ],
        "totals": (rows, departed, int(delays or 0)),
        "distinct": distinct,
        "dense_partitions": dense,
        "windows": {
            (origin, carrier, start): (n, int(total), high) for origin, carrier, start, n, total, high in windows
        },
    }


def with_pyiceberg(folder):
    """Every row, through Arrow, in the order of the log: {origin: [payload]} and the number of rows."""
    table = StaticTable.from_metadata(str(folder))
    arrow = table.scan(selected_fields=("partition", "offset", "transaction_id", "payload")).to_arrow()
    arrow = arrow.sort_by([("partition", "ascending"), ("offset", "ascending")])
    by_origin = {origin: [] for origin in source.ORIGINS}
    misnamed = 0
    for line in arrow.to_pylist():
        payload = json.loads(line["payload"])
        by_origin[line["partition"]].append(payload)
        misnamed += line["transaction_id"] != source.transaction_id(payload)
    return {
        "rows": arrow.num_rows,
        "payloads": by_origin,
        "misnamed": misnamed,
        "snapshots": len(table.snapshots()),
    }
