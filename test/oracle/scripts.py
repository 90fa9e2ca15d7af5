#!/usr/bin/env python3
"""Runs scripts of psql through a node of a cluster and on a plain server, and compares what they print.

scripts.py [--limit SECONDS] [--sessions N] --cluster CONNINFO --plain CONNINFO --answers DIR SCRIPTS: SCRIPTS is a folder of *.sql files, each of
which makes, and drops first, what it needs; N of them run at the same time. Lines that begin with "SELECT tessera." are for the cluster alone; what
they answer is not compared, their errors are. All else must be the same, line by line: rows in their order, errors and notices with details and
hints, but not where they came from (CONTEXT), and not empty lines.

SCRIPTS/known_differences.txt lists, with tabs between, a script, a pattern of lines that differ there, and why. One that is not found any more is
an error, too.

Prints a line "ok - NAME", or "not ok - NAME" with what differs, for each script, then "same: N; differ: N: NAMES" and "known: N: NAMES". Its status
is 1 if anything differs that is not listed, or is listed and does not differ. DIR gets the answers: NAME.plain, NAME.cluster.
"""
import argparse
import concurrent.futures
import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

OF_CLUSTER = "SELECT tessera."
QUIET = ("\\o /dev/null", "\\o")
PLACE = re.compile(r"^psql:[^\n]*?:\d+: ")


def for_cluster(script):
    """The script with the answers of the cluster's own statements thrown away."""
    return "".join(f"{QUIET[0]}\n{line}{QUIET[1]}\n" if line.startswith(OF_CLUSTER) else line for line in script)


def for_plain(script):
    return "".join(line for line in script if not line.startswith(OF_CLUSTER))


def begin(conninfo, script, folder, name):
    """psql, which runs the script; what it says comes in order into a file."""
    source, said = pathlib.Path(folder) / f"{name}.sql", tempfile.TemporaryFile()
    source.write_text(script, encoding="utf-8")
    return subprocess.Popen(["psql", "-X", "-q", "-a", "-v", "SHOW_CONTEXT=never", "-d", conninfo, "-f", str(source)],
                            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT), said


def answer(process, said, limit):
    try:
        process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        said.write(f"stopped after {limit} s\n".encode())
    said.seek(0)
    lines = [PLACE.sub("", line) for line in said.read().decode("utf-8", errors="replace").splitlines()]
    return [line for line in lines if line.strip() and not line.startswith(OF_CLUSTER) and line not in QUIET]


def run(file, arguments):
    """What a script prints on the plain server, and through the cluster."""
    name, script = file.stem, file.read_text(encoding="utf-8").splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as scratch:
        begun = [begin(arguments.plain, for_plain(script), scratch, f"{name}.plain"), begin(arguments.cluster, for_cluster(script), scratch, name)]
        return [answer(*one, arguments.limit) for one in begun]


def known_differences(folder):
    """Triples of script, pattern and reason."""
    file = folder / "known_differences.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(script, re.compile(pattern), why) for script, pattern, why in (line.split("\t") for line in lines if line and line[0] != "#")]


def compare(plain, cluster, known, found):
    """The lines of a diff that are not known, and whether others are. Adds to found which known ones there were."""
    unknown, listed = [], False
    for line in difflib.unified_diff(plain, cluster, "plain", "cluster", lineterm="", n=1):
        if line.startswith(("+++", "---")) or line[0] not in "+-":
            unknown.append(line)
            continue
        match = next((k for k in known if k[1].search(line[1:])), None)
        if match:
            found.add(match)
            listed = True
        else:
            unknown.append(line)
    return (unknown if any(line[0] in "+-" and not line.startswith(("+++", "---")) for line in unknown) else []), listed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--plain", required=True)
    parser.add_argument("--answers", required=True)
    parser.add_argument("scripts")
    arguments = parser.parse_args()
    folder, answers = pathlib.Path(arguments.scripts), pathlib.Path(arguments.answers)
    answers.mkdir(parents=True, exist_ok=True)
    files, known, found = sorted(folder.glob("*.sql")), known_differences(folder), set()
    same, differ, listed = [], [], []
    if not files:
        sys.exit(f"no scripts in {folder}")
    pool = concurrent.futures.ThreadPoolExecutor(arguments.sessions)
    for file, (plain, cluster) in zip(files, pool.map(lambda file: run(file, arguments), files)):
        name = file.stem
        for suffix, lines in (("plain", plain), ("cluster", cluster)):
            (answers / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        unknown, is_known = compare(plain, cluster, [k for k in known if k[0] == name], found)
        (differ if unknown else listed if is_known else same).append(name)
        print(f"{'not ok' if unknown else 'ok'} - {name}", *(f"#   {line}" for line in unknown[:60]), sep="\n", flush=True)
    gone = [k for k in known if k not in found]
    for script, pattern, _ in gone:
        print(f"not ok - {script}: is listed as different, and is the same: {pattern.pattern}")
    print(f"same: {len(same)}; differ: {len(differ)}: {' '.join(differ)}")
    print(f"known: {len(listed)}: {' '.join(listed)}")
    sys.exit(1 if differ or gone else 0)


main()
