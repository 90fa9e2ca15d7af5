#!/usr/bin/env python3
"""Names: what messages, hints and documents call tessera.something exists, as an object of the extension or as a setting."""
import glob
import os
import re

from csource import Report, blank, line_of, read, root, sources

NAME = re.compile(r"\btessera\.([a-z]\w*[a-z0-9])\b(?!\*)")


def existing(top):
    """Names in the install files, settings, and files of the project that are called so."""
    names = {"so", "control"}
    for path in glob.glob(os.path.join(top, "extension/install/*.sql")):
        names.update(NAME.findall(read(top, os.path.relpath(path, top))))
    for path in sources(top):
        text = read(top, path)
        if "DefineCustom" in text:
            names.update(re.findall(r'"tessera\.(\w+)"', text))
    return names


def main():
    top = root()
    report = Report()
    names = existing(top)
    code, documents = [], []
    for path in sources(top):
        text = blank(read(top, path), strings=False)
        for literal in re.finditer(r'"((?:\\.|[^"\\\n])*)"', text):
            code += ["%s:%d: there is no tessera.%s" % (path, line_of(text, literal.start()), name)
                     for name in NAME.findall(literal.group(1)) if name not in names]
    for path in ["README.md"] + sorted(os.path.relpath(path, top) for path in glob.glob(os.path.join(top, "doc/*.md"))):
        text = read(top, path)
        documents += ["%s:%d: there is no tessera.%s" % (path, line_of(text, match.start()), match.group(1))
                      for match in NAME.finditer(text) if match.group(1) not in names]
    report.check("messages name what exists", code)
    report.check("documents name what exists", documents)
    report.exit()


main()
