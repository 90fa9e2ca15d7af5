#!/usr/bin/env python3
"""Lengths: no function over 100 lines, no file over 1200, but those named with a reason in lengths.allow."""
import os

from csource import Report, blank, functions, read, root, sources

FUNCTION_LINES = 100
FILE_LINES = 1200


def allowed():
    """Entries of lengths.allow: 'path' or 'path function', then '# reason'. An entry without a reason does not count."""
    entries = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lengths.allow"), encoding="utf-8") as file:
        for line in file:
            entry, _, reason = line.partition("#")
            if entry.strip() and reason.strip():
                entries[" ".join(entry.split())] = False
    return entries


def main():
    top = root()
    report = Report()
    entries = allowed()
    long_functions, long_files = [], []
    for path in sources(top):
        text = read(top, path)
        for name, line, lines in functions(blank(text)):
            if lines > FUNCTION_LINES:
                entry = "%s %s" % (path, name)
                if entry in entries:
                    entries[entry] = True
                else:
                    long_functions.append("%s:%d: %s has %d lines" % (path, line, name, lines))
        if text.count("\n") > FILE_LINES:
            if path in entries:
                entries[path] = True
            else:
                long_files.append("%s has %d lines" % (path, text.count("\n")))
    report.check("functions have at most %d lines" % FUNCTION_LINES, long_functions)
    report.check("files have at most %d lines" % FILE_LINES, long_files)
    report.check("exceptions are still needed", [entry for entry, used in entries.items() if not used])
    report.exit()


main()
