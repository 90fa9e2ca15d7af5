#!/usr/bin/env python3
"""Errors: each ereport that can be an error has an SQLSTATE; elog raises none; primary messages are in PostgreSQL's style."""
import re

from csource import Report, blank, calls, line_of, read, root, sources

HARMLESS = re.compile(r"^\s*(DEBUG[1-5]|LOG|LOG_SERVER_ONLY|COMMERROR|INFO|NOTICE|WARNING|WARNING_CLIENT_ONLY)\s*$")
RAISES = re.compile(r"^\s*(ERROR|FATAL|PANIC)\s*$")
CAPITALIZED = re.compile(r"^[A-Z][a-z]+\b")


def level_of(blanked, start, end):
    """Text of the first argument."""
    depth = 0
    for position in range(start, end):
        if blanked[position] == "(":
            depth += 1
        elif blanked[position] == ")":
            depth -= 1
        elif blanked[position] == "," and depth == 0:
            return blanked[start:position]
    return blanked[start:end]


def main():
    top = root()
    report = Report()
    codes, elogs, messages = [], [], []
    for path in sources(top):
        text = read(top, path)
        blanked = blank(text)
        for name in ("ereport", "ereport_domain"):
            for start, inside, end in calls(blanked, name):
                if not HARMLESS.match(level_of(blanked, inside, end)) and not re.search(r"errcode\w*\s*\(", blanked[inside:end]):
                    codes.append("%s:%d: no errcode" % (path, line_of(text, start)))
        for start, inside, end in calls(blanked, "elog"):
            if RAISES.match(level_of(blanked, inside, end)):
                elogs.append("%s:%d: use ereport with errcode and errmsg_internal" % (path, line_of(text, start)))
        for name in ("errmsg", "errmsg_internal"):
            for start, inside, end in calls(blanked, name):
                literals = re.findall(r'"((?:\\.|[^"\\])*)"', blank(text[inside:end], strings=False))
                if not literals:
                    continue
                message = "".join(literals)
                where = "%s:%d: " % (path, line_of(text, start))
                if CAPITALIZED.match(message) and not re.match(r"(ZeroMQ|PostgreSQL)\b", message):
                    messages.append(where + "starts with a capital: " + message)
                if text[inside:end].rstrip().endswith('"') and message.endswith((".", "!", "\\n")):
                    messages.append(where + "ends with a full stop: " + message)
                if "\\n" in message:
                    messages.append(where + "is more than one line: " + message)
    report.check("every error has an SQLSTATE", codes)
    report.check("elog raises no error", elogs)
    report.check("messages are lower-case, one line, without a full stop", messages)
    report.exit()


main()
