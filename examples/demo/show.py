"""Shows what the demo's job published: show.py sizes|top FOLDER. Standard library only."""

import base64
import json
import pathlib
import sys


def rows(folder):
    for path in sorted(folder.glob("*.ndjson")):
        with path.open() as file:
            # Decimals keep their last zero.
            yield from (json.loads(line, parse_float=str) for line in file)


def table(title, rows, columns):
    print(f"\n{title}")
    cells = [columns, *([str(row[c]) for c in columns] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  " + "  ".join(cell[:60].ljust(min(width, 60)) for cell, width in zip(row, widths)))


def sizes(out):
    for folder in sorted(p for p in out.iterdir() if not p.name.startswith("_")):
        files = list(folder.glob("*.ndjson"))
        print(f"  {folder.name:10} {sum(1 for _ in rows(folder)):>9,} rows in {len(files):>3} files")


def top(out):
    best = sorted(rows(out / "per_user"), key=lambda r: (-r["clicks"], r["user_id"]))[:5]
    table("busiest users", best, ["user_id", "window_start", "clicks", "spend", "pages"])
    late = [row for _, row in zip(range(3), rows(out / "late"))]
    if late:
        table("some late rows", late, ["user_id", "ts", "window_start", "window_end", "watermark"])
    bad = [row for _, row in zip(range(3), rows(out / "bad"))]
    for row in bad:
        row["raw"] = base64.b64decode(row["raw"]).decode(errors="replace")
    if bad:
        table("some bad rows", bad, ["position", "reason", "raw"])


if __name__ == "__main__":
    {"sizes": sizes, "top": top}[sys.argv[1]](pathlib.Path(sys.argv[2]))
