#!/usr/bin/env python3
"""The tables of transitions in doc/migration.md are what tessera.migration_transitions() returns, as expected/migration.out has it."""
import re

from csource import Report, read, root

TITLES = {"Donor:": "donor", "Recipient:": "recipient", "Config node:": "config node"}


def printed(top):
    """Rows of the first query of expected/migration.out: side, from, to, kept in, who, durable, comment."""
    lines = read(top, "expected/migration.out").split("\n")
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("side") and "from_state" in line) + 2
    end = next(i for i in range(start, len(lines)) if re.match(r"\(\d+ rows\)", lines[i]))
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines[start:end]]


def documented(top):
    rows = []
    side = None
    for line in read(top, "doc/migration.md").split("\n"):
        if line.startswith("## "):
            side = None
        side = TITLES.get(line.strip(), side)
        if side is None or not line.startswith("|") or line.startswith("| from |") or line.startswith("|---"):
            continue
        rows.append((side,) + tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
    return rows


def main():
    top = root()
    report = Report()
    there = printed(top)
    here = documented(top)
    findings = ["not in doc/migration.md: %s" % " | ".join(row) for row in there if row not in here]
    findings += ["not in expected/migration.out: %s" % " | ".join(row) for row in here if row not in there]
    if not findings and there != here:
        findings.append("doc/migration.md has another order than expected/migration.out")
    if not there:
        findings.append("expected/migration.out has no transitions")
    report.check("the transitions of a migration are documented", findings)
    report.exit()


main()
