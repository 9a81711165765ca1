"""Bids in the manner of Nexmark, as NDJSON: deterministic, so that every figure can be repeated.

    generate.py FOLDER [--rows 3000000] [--files 4]

A row has about 250 bytes:
{"auction":..,"bidder":..,"price":..,"channel":"..","url":"..","dateTime":<ms>,"extra":".."}
Event time moves by 1 s for every 10,000 bids; a bid is at most 2 s out of order. Auctions and
bidders grow as in Nexmark (3 auctions and 1 person for 46 bids); half of the bids go to the hot
auction and three quarters come from the hot bidder of the moment. Rows are dealt to the files in
turn, so that the files cover the same time. Writes nothing when FOLDER is already complete.
"""

import argparse
import pathlib
import random
import sys

START_MS = 1_700_000_000_000
BIDS_PER_SECOND = 10_000
DISORDER_MS = 2_000
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def bids(rows, seed=1):
    """Yields each bid as one line of JSON."""
    # Only random() is promised to be the same in every version of Python.
    rnd = random.Random(seed).random
    padding = ["".join(ALPHABET[int(rnd() * 26)] for _ in range(110)) for _ in range(997)]
    for n in range(rows):
        epoch = n // 46
        auction_last, person_last = 1_000 + 3 * epoch, 1_000 + epoch
        if rnd() < 0.5:
            auction = auction_last // 100 * 100
        else:
            auction = auction_last - int(rnd() * min(100, 3 * epoch + 1))
        if rnd() < 0.75:
            bidder = person_last // 100 * 100 + 1
        else:
            bidder = person_last - int(rnd() * min(1_000, epoch + 1))
        price = int(10 ** (rnd() * 6) * 100)
        if rnd() < 0.5:
            channel = HOT_CHANNELS[int(rnd() * 4)]
        else:
            channel = f"channel-{int(rnd() * 10_000)}"
        when = START_MS + n * 1_000 // BIDS_PER_SECOND - int(rnd() * DISORDER_MS)
        extra = padding[n % 997][: 70 + int(rnd() * 40)]
        yield (
            f'{{"auction":{auction},"bidder":{bidder},"price":{price},"channel":"{channel}",'
            f'"url":"https://www.nexmark.com/{extra[:3]}/{extra[3:6]}/item.htm?query=1",'
            f'"dateTime":{when},"extra":"{extra}"}}\n'
        )


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("folder", type=pathlib.Path)
    args.add_argument("--rows", type=int, default=3_000_000)
    args.add_argument("--files", type=int, default=4)
    args = args.parse_args()
    done = args.folder / ".complete"
    stamp = f"1 {args.rows} {args.files}"
    if done.exists() and done.read_text() == stamp:
        return
    print(f"writing {args.rows:,} bids to {args.folder}", file=sys.stderr)
    args.folder.mkdir(parents=True, exist_ok=True)
    for old in args.folder.iterdir():
        old.unlink()
    files = [
        open(args.folder / f"bids-{i}.ndjson", "w", buffering=1 << 20) for i in range(args.files)
    ]
    for n, line in enumerate(bids(args.rows)):
        files[n % args.files].write(line)
    for file in files:
        file.close()
    done.write_text(stamp)


if __name__ == "__main__":
    main()
