"""test/explain.py NAME LOG SERVERLOGS: why a TAP file failed, for the last screen of test/run.

NAME is the file's, LOG.out and LOG.err what it wrote, SERVERLOGS the folder with its regress_log_NAME and its servers' logs. For each failed test:
its name, what was got and expected, and what the servers logged in the SECONDS before it; at most LINES lines of each.
"""
import glob
import os
import re
import sys

LINES = 30
SECONDS = 5
FAILED = re.compile(r"^(?:\[(\d+):(\d+):(\d+)\.(\d+)\]\([^)]*\) )?\s*not ok\b(?!.*# *todo)", re.I)
STAMP = re.compile(r"^(?:\d{4}-\d\d-\d\d )(\d+):(\d+):(\d+)\.(\d+)")


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().split("\n")
    except OSError:
        return []


def seconds(parts):
    hours, minutes, rest, thousandths = (int(part) for part in parts)
    return hours * 3600 + minutes * 60 + rest + thousandths / 1000


def moment(folder, name, when):
    """Lines of the servers' logs from shortly before a failure."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, f"{name}_*.log"))):
        server, shown = os.path.basename(path)[len(name) + 1:-4], False
        for line in read(path):
            stamp = STAMP.match(line)
            if stamp:
                shown = when - SECONDS <= seconds(stamp.groups()) <= when + 0.5
            if shown:
                found.append(f"{server}: {line}"[:300])
    return found[-LINES:]


def main():
    name, log, folder = sys.argv[1:4]
    print(f"# {name}:")
    written = read(os.path.join(folder, f"regress_log_{name}"))
    explained = 0
    for number, line in enumerate(written):
        failed = FAILED.match(line)
        if not failed or explained >= 5:
            continue
        explained += 1
        print(line)
        # what is got and expected follows, up to the next test
        for following in written[number + 1:number + 1 + LINES]:
            if re.search(r"\) (?:not )?ok\b|# Running:", following):
                break
            print(following[:300])
        if failed.group(1):
            for entry in moment(folder, name, seconds(failed.groups())):
                print(f"#   {entry}")
    for line in read(f"{log}.out"):
        if explained == 0 and FAILED.match(line):
            print(line)
    # what ended it
    print("\n".join(line[:300] for line in read(f"{log}.err")[-LINES:]))
    if explained == 0:
        print("\n".join(line[:300] for line in written[-LINES:]))


main()
