#!/usr/bin/env python3
"""
PostgreSQL's versions are told apart in common/version_compat alone; no macro gives a field or function of core another name; names that only some
versions have, and that the build on 15 and 17 does not notice, are not used.
"""
import re

from csource import Report, blank, line_of, read, root, sources

HOME = ("src/common/version_compat.h", "src/common/version_compat.c")
VERSION = re.compile(r"\b(PG_VERSION_NUM|PG_MAJORVERSION(_NUM)?|PG_MINORVERSION_NUM|CATALOG_VERSION_NO)\b")
# 18 has pg_noreturn, in another place: the language's own word does for all
GONE = re.compile(r"\bpg_attribute_noreturn\b")
ALIAS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([a-z]\w*)[ \t]+([a-z]\w*)[ \t]*$", re.M)


def main():
    top = root()
    report = Report()
    versions, aliases, gone = [], [], []
    for path in sources(top):
        text = blank(read(top, path))
        if path not in HOME:
            versions += ["%s:%d: %s belongs into common/version_compat.h" % (path, line_of(text, match.start()), match.group(1))
                         for match in VERSION.finditer(text)]
        gone += ["%s:%d: use _Noreturn, in front" % (path, line_of(text, match.start())) for match in GONE.finditer(text)]
        aliases += ["%s:%d: %s is only another name of %s" % (path, line_of(text, match.start()), match.group(1), match.group(2))
                    for match in ALIAS.finditer(text)]
    report.check("versions of PostgreSQL are told apart in common/version_compat only", versions)
    report.check("no macro renames a field or function", aliases)
    report.check("no names that later versions do not have", gone)
    report.exit()


main()
