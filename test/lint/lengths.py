#!/usr/bin/env python3
"""Lengths: no function over 100 lines, no file over 1200, but those named with a reason in lengths.allow; no line over 150
columns (a tab is 4)."""
import os

from csource import Report, blank, functions, read, root, sources

FUNCTION_LINES = 100
FILE_LINES = 1200
COLUMNS = 150
WIDTH_FOLDERS = ("src", "bgworkers", "extension/install", "test")
WIDTH_FILES = ("Makefile",)
WIDTH_MADE = ("src/control/calls.c", "src/control/calls.h", "src/common/build.h")  # at build
WIDTH_SUFFIXES = {"test": (".pl", ".pm", ".py"), "": (".c", ".h", ".sql")}


def allowed():
    """Entries of lengths.allow: 'path' or 'path function', then '# reason'. An entry without a reason does not count."""
    entries = {}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lengths.allow"), encoding="utf-8") as file:
        for line in file:
            entry, _, reason = line.partition("#")
            if entry.strip() and reason.strip():
                entries[" ".join(entry.split())] = False
    return entries


def wide_lines(top):
    """Lines that are too wide, as path:line."""
    paths = list(WIDTH_FILES)
    for folder in WIDTH_FOLDERS:
        suffixes = WIDTH_SUFFIXES.get(folder, WIDTH_SUFFIXES[""])
        for directory, folders, names in os.walk(os.path.join(top, folder)):
            folders[:] = [name for name in folders if name not in ("node_modules", "tmp_check")]
            paths += [os.path.relpath(os.path.join(directory, name), top) for name in names if name.endswith(suffixes)]
    for path in sorted(set(paths) - set(WIDTH_MADE)):
        for number, line in enumerate(read(top, path).split("\n"), 1):
            width = len(line.expandtabs(4))
            if width > COLUMNS:
                yield "%s:%d: %d columns" % (path, number, width)


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
    report.check("lines have at most %d columns" % COLUMNS, list(wide_lines(top)))
    report.check("exceptions are still needed", [entry for entry, used in entries.items() if not used])
    report.exit()


main()
