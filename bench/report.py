"""Tables, pictures and the description of the machine for bench/results."""

import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def machine():
    """One line that says where the figures come from."""
    cpu = "unknown CPU"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) / 1024 / 1024
    return (
        f"{os.cpu_count()} cores of {cpu}, {memory:.0f} GB, {platform.system()} "
        f"{platform.release()}, load {os.getloadavg()[0]:.1f} at the end"
    )


def commit():
    """The commit measured, marked when the tree differed from it."""

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def first_line(*command):
    """The first line a command prints, on either stream."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return (run.stdout + run.stderr).strip().splitlines()[0]


def thousands(rows, seconds):
    return f"{rows / seconds / 1000:,.0f} k"


def table(result, queries, rows, names, targets):
    """A Markdown table: rows per CPU-second, rows per second, peak RSS; theirs, ours, ratio."""
    lines = [
        "| query | rows/CPU-s Flink | StreamForge | ratio | aim | rows/s Flink | StreamForge "
        "| ratio | RSS Flink | StreamForge | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for query in queries:
        theirs, ours = result.get((query, "flink")), result.get((query, "streamforge"))
        cells = [names[query]]
        for key in ("cpu_s", "wall_s"):
            cells += [thousands(rows, of[key]) if of else "-" for of in (theirs, ours)]
            cells.append(f"{theirs[key] / ours[key]:.1f}×" if theirs and ours else "-")
            if key == "cpu_s":
                cells.append(f"≥ {targets[query]:.0f}×")
        cells += [f"{of['rss_mb']:,.0f} MB" if of else "-" for of in (theirs, ours)]
        cells.append(f"{ours['rss_mb'] / theirs['rss_mb']:.2f}×" if theirs and ours else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bars(result, queries, rows, names):
    """An SVG with one pair of bars per query for each of the three measures."""
    panels = [
        ("thousand rows per CPU-second", lambda of: rows / of["cpu_s"] / 1000),
        ("thousand rows per second", lambda of: rows / of["wall_s"] / 1000),
        ("peak RSS, MB (less is better)", lambda of: of["rss_mb"]),
    ]
    colours = {"flink": "#9aa0a6", "streamforge": "#1a73e8"}
    width, bar, gap, left = 760, 14, 12, 150
    panel_height = 34 + len(queries) * (2 * bar + gap)
    height = 40 + panel_height * len(panels)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, who in enumerate(colours):
        out.append(f'<rect x="{left + i * 110}" y="12" width="12" height="12" fill="{colours[who]}"/>')
        name = {"flink": "Flink 2.3", "streamforge": "StreamForge"}[who]
        out.append(f'<text x="{left + 18 + i * 110}" y="22">{name}</text>')
    top = 40
    for title, value in panels:
        most = max(value(of) for of in result.values())
        out.append(f'<text x="{left}" y="{top + 16}" font-weight="bold">{title}</text>')
        y = top + 26
        for query in queries:
            out.append(f'<text x="{left - 8}" y="{y + bar + 4}" text-anchor="end">{names[query]}</text>')
            for who in colours:
                v = value(result[query, who])
                length = max(1, (width - left - 80) * v / most)
                out.append(
                    f'<rect x="{left}" y="{y}" width="{length:.0f}" height="{bar - 1}" '
                    f'fill="{colours[who]}"/>'
                    f'<text x="{left + length + 5:.0f}" y="{y + 11}">{v:,.0f}</text>'
                )
                y += bar
            y += gap
        top += panel_height
    return "\n".join([*out, "</svg>"]) + "\n"


def write(folder, stem, result, queries, given, names, targets):
    """Writes `<stem>.md` and `<stem>.svg` and says where."""
    folder.mkdir(parents=True, exist_ok=True)
    bytes_n = sum(f.stat().st_size for f in given.input.glob("*.ndjson"))
    text = f"""# Against Flink 2.3, {stem[:10]}

{given.rows:,} bids as NDJSON in {given.files} file(s), {bytes_n / given.rows:.0f} bytes a row, into
both, in turn; medians of {given.runs} runs; parallelism {given.parallelism}; state in memory, a
checkpoint to disk every 10 s, results thrown away. Flink's figures are those of a warm JVM
(second run in its process); StreamForge's are those of the whole process, start included.

{table(result, queries, given.rows, names, targets)}

![bars]({stem}.svg)

- Machine: {machine()}
- Commit: {commit()}
- Flink 2.3.0 on {first_line("java", "-version")}
- Repeat: `make bench`
"""
    (folder / f"{stem}.md").write_text(text)
    (folder / f"{stem}.svg").write_text(bars(result, queries, given.rows, names))
    print(f"wrote {folder / stem}.md and .svg")
