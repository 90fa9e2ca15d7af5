#!/usr/bin/env python3
"""
Names and types are written by common/text.c alone: the server's own functions go by quote_all_identifiers, so what two sessions make of one name may
differ, and what is compared between nodes or made of it (identifiers of partitions, keys of locks) with it.
"""
import re

from csource import Report, blank, line_of, read, root, sources

HOME = "src/common/text.c"
CALL = re.compile(r"\b(quote_identifier|quote_qualified_identifier|format_type_extended|format_type_with_typemod)\s*\(")
INSTEAD = {"quote_identifier": "tessera_quote", "quote_qualified_identifier": "tessera_quote_qualified"}


def main():
    top = root()
    report = Report()
    findings = []
    for path in sources(top):
        if path != HOME:
            findings += ["%s:%d: use %s" % (path, line_of(text, match.start()), INSTEAD.get(match.group(1), "tessera_type_text"))
                         for text in [blank(read(top, path))] for match in CALL.finditer(text)]
    report.check("names are quoted alike whatever a session's settings are", findings)
    report.exit()


main()
