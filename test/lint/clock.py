#!/usr/bin/env python3
"""Clock: no TAP test is decided by how fast the machine is.

In test/tap and test/perl no assertion has an upper bound on a time that has passed, and nobody sleeps for a tenth of a second or longer. What has a
reason says it in the same line, behind "# clock:".
"""
import os
import re

from csource import Report, read, root

FOLDERS = ("test/tap", "test/perl")
PASSED = r"(?:\btime\s*-\s*\$\w+|\$(?:took|elapsed|slowest|passed)\b)"
BOUNDED = re.compile(r"\b(?:cmp_ok|ok)\(\s*(?:%s\s*,\s*'<=?'|%s\s*<)" % (PASSED, PASSED))
SLEEP = re.compile(r"(?<![\w'])sleep\b\s*\(?\s*([^;]*)")
SHORT = re.compile(r"^0\.0\d*\)?\s*(?:(?:if|unless)\b.*)?$")
IMPORT = re.compile(r"^\s*use\s")


def findings(path, text):
    bounds, sleeps = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if "# clock:" in line or IMPORT.match(line) or line.lstrip().startswith("#"):
            continue
        where = "%s:%d" % (path, number)
        if BOUNDED.search(line):
            bounds.append("%s: show it by order: what is done while something else still stands there" % where)
        match = SLEEP.search(line)
        if match and "pg_sleep" not in line and not SHORT.match(match.group(1)):
            sleeps.append("%s: wait for what is to come" % where)
    return bounds, sleeps


def main():
    top = root()
    report = Report()
    bounds, sleeps = [], []
    for folder in FOLDERS:
        for directory, _, names in sorted(os.walk(os.path.join(top, folder))):
            for name in sorted(names):
                if name.endswith((".pl", ".pm")):
                    path = os.path.relpath(os.path.join(directory, name), top)
                    found = findings(path, read(top, path))
                    bounds += found[0]
                    sleeps += found[1]
    report.check("no test demands that something took no longer than so much", bounds)
    report.check("no test sleeps where it could wait", sleeps)
    report.exit()


main()
