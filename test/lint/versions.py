#!/usr/bin/env python3
"""PostgreSQL's versions are told apart in common/version_compat alone; no macro gives a field or function of core another name."""
import re

from csource import Report, blank, line_of, read, root, sources

HOME = ("src/common/version_compat.h", "src/common/version_compat.c")
VERSION = re.compile(r"\b(PG_VERSION_NUM|PG_MAJORVERSION(_NUM)?|PG_MINORVERSION_NUM|CATALOG_VERSION_NO)\b")
ALIAS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([a-z]\w*)[ \t]+([a-z]\w*)[ \t]*$", re.M)


def main():
    top = root()
    report = Report()
    versions, aliases = [], []
    for path in sources(top):
        text = blank(read(top, path))
        if path not in HOME:
            versions += ["%s:%d: %s belongs into common/version_compat.h" % (path, line_of(text, match.start()), match.group(1))
                         for match in VERSION.finditer(text)]
        aliases += ["%s:%d: %s is only another name of %s" % (path, line_of(text, match.start()), match.group(1), match.group(2))
                    for match in ALIAS.finditer(text)]
    report.check("versions of PostgreSQL are told apart in common/version_compat only", versions)
    report.check("no macro renames a field or function", aliases)
    report.exit()


main()
