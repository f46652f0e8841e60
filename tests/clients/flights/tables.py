"""The published table of a stream, read by DuckDB and by PyIceberg, neither of which knows the server."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
from pyiceberg.table import StaticTable

from . import source

PAUSE_SECONDS = 0.5
COLUMNS = ["partition", "offset", "time", "id", "transaction_id", "key", "headers", "payload"]


def duck(folder=None):
    """A connection that reads Iceberg without the network: the extensions come from Python packages."""
    connection = duckdb.connect()
    connection.sql("set autoinstall_known_extensions = false")
    connection.sql("set autoload_known_extensions = false")
    for package in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
        name = package.__name__.removeprefix("duckdb_extension_")
        extensions = Path(os.path.dirname(package.__file__)) / "extensions" / f"v{duckdb.__version__}"
        connection.sql(f"load '{extensions / name}.duckdb_extension'")
    if isinstance(folder, InBucket):
        host = folder.endpoint.removeprefix("http://")
        connection.sql(
            f"create secret (type s3, key_id '{folder.key}', secret '{folder.secret}', region '{folder.region}', "
            f"endpoint '{host}', url_style 'path', use_ssl false)"
        )
    return connection


@dataclass(frozen=True)
class InBucket:
    """A table in a bucket, and how to reach it. Its text is what readers take."""

    bucket: str
    stream: str
    endpoint: str
    key: str
    secret: str
    region: str

    def __str__(self):
        return f"s3://{self.bucket}/tables/{self.stream}"

    @property
    def properties(self):
        """What PyIceberg wants to know."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.region": self.region,
        }


def folder_of(data, stream):
    """A table in a server's data folder."""
    return Path(data) / "tables" / stream


def bucket_of(store, stream):
    """A table of the deployed store."""
    sdk = store.environment
    return InBucket(
        bucket=store.bucket,
        stream=stream,
        endpoint=store.endpoints.s3,
        key=sdk["AWS_ACCESS_KEY_ID"],
        secret=sdk["AWS_SECRET_ACCESS_KEY"],
        region=sdk["AWS_REGION"],
    )


def published(folder):
    """Rows in the table now; 0 before there is one."""
    if isinstance(folder, Path) and not (folder / "metadata" / "version-hint.text").exists():
        return 0
    try:
        return duck(folder).sql(f"select count(*) from iceberg_scan('{folder}')").fetchone()[0]
    except duckdb.IOException:  # between the creation of a table and its first snapshot
        return 0
    except duckdb.Error as error:
        if "no version-hint could be found" in str(error):  # before that, in a bucket
            return 0
        raise


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
    connection = duck(folder)
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
    table = StaticTable.from_metadata(str(folder), folder.properties if isinstance(folder, InBucket) else {})
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
