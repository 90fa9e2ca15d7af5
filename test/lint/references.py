#!/usr/bin/env python3
"""References: what a text names in doc/ exists there, and no text refers to documents outside of the repository.

Forms that are checked: doc/FILE.md, doc/FILE.md#name, [..](FILE.md#name), [..](#name), doc/FILE.md "Section", and "Section" in doc/FILE.md
("doc/" may be left out). A name is the id of an <a> element, or that of a heading as GitHub makes it.
A letter and a number alone between parentheses, in a comment, is no reference that resolves.
Files named with their folder (catalog/key.h, test/lint/layers.py, test/oracle/run) and tests (tap/001_install) exist, too.
"""
import os
import re

from csource import Report, line_of, root

FOLDERS = ("src", "bgworkers", "extension", "sql", "expected", "test", "doc")
FILES = ("Makefile", "README.md", "META.json")
SKIP = ("test/lint/references.py",)
SUFFIXES = (".c", ".h", ".def", ".sql", ".pl", ".pm", ".py", ".spec", ".out", ".md", ".sh", "/run")
MADE = ("src/control/calls.c", "src/control/calls.h", "src/common/build.h")  # at build
OUTSIDE = re.compile(r"\b(DESIGN|PROTOCOLS|PLANNER|CLOCKS|TENANTS|PG15|STYLE)(\.md)?\b|\bissue \d+\b")
NUMBER = re.compile(r"\((?:see )?[A-Ka-k]\d{1,2}[,;)]|[,;] [A-Ka-k]\d{1,2}\)")
PAGE = r"`?(?:doc/)?([a-z_]+\.md|README\.md)`?"
ANCHOR = re.compile(r"(?:doc/)?([a-z_]+\.md)#([\w-]+)")
INSIDE = re.compile(r"\]\(#([\w-]+)\)")
NAMED = re.compile(r"\bdoc/([\w.]+\.md)")
SECTION_BEHIND = re.compile(PAGE + r",?\s+\\?\"([^\"\\\n]{3,60})\\?\"")
SECTION_BEFORE = re.compile(r"\\?\"([^\"\\\n]{3,60})\\?\"\s+in\s+" + PAGE)


SOURCE = re.compile(r"(?<![\w/.<-])((?:src/)?([a-z_]+)/[a-z_]+\.[ch])\b")
OTHER = re.compile(r"(?<![\w/])(?:\$tessera_root/|\$\(tree\)/)?(test/[a-z]+/\w[\w./-]*\w)")
BUILT = ("test/bench/policy_simulation", "test/chaos/client", "test/chaos/proxy", "test/fuzz/bin", "test/unit/bin")
TAP = re.compile(r"\btap/([a-z]+/[a-z0-9_]+)")


def is_script(path):
    """A script without a suffix."""
    if "." in os.path.basename(path):
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def texts(top):
    """(path, text) of each text file of the project."""
    paths = [name for name in FILES if os.path.exists(os.path.join(top, name))]
    for folder in FOLDERS:
        for directory, folders, names in os.walk(os.path.join(top, folder)):
            folders[:] = [name for name in folders if name not in ("__pycache__", "results", "tmp_check")]
            paths += [os.path.relpath(os.path.join(directory, name), top) for name in names
                      if ("/" + name).endswith(SUFFIXES) or is_script(os.path.join(directory, name))]
    for path in sorted(paths):
        if path in SKIP or re.match(r"extension/tessera--", path):  # the script is made of extension/install
            continue
        try:
            with open(os.path.join(top, path), encoding="utf-8") as file:
                yield path, file.read()
        except UnicodeDecodeError:
            continue


def github_id(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


class Page:
    """Names and section titles of one page of doc/."""

    def __init__(self, text):
        self.names = set(re.findall(r"<a id=\"([\w-]+)\">", text))
        self.titles = set()
        for heading in re.findall(r"^#+ (.*)$", text, re.M):
            title = re.sub(r"<a id=.*?</a>", "", heading).strip()
            self.names.add(github_id(title))
            self.titles.add(title)
            self.titles.add(re.sub(r"^[\d.]+ ", "", title))


def pages(top):
    found = {}
    folder = os.path.join(top, "doc")
    for name in sorted(os.listdir(folder)) + ["../README.md"]:
        if name.endswith(".md"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found[os.path.basename(name)] = Page(file.read())
    return found


def comments(path, text):
    """The text with all but its comments blanked, as far as that is easily told."""
    if path.endswith((".c", ".h")):
        keep = re.compile(r"/\*.*?\*/", re.S)
    else:
        keep = re.compile(r"^[ \t]*(?:#|--).*$", re.M)
    out = list(re.sub(r"[^\n]", " ", text))
    for match in keep.finditer(text):
        out[match.start():match.end()] = match.group(0)
    return "".join(out)


def unresolved(found, path, text):
    for match in NAMED.finditer(text):
        if match.group(1) not in found:
            yield match, "there is no doc/" + match.group(1)
    for match in ANCHOR.finditer(text):
        page, name = match.groups()
        if page not in found:
            yield match, "there is no page " + page
        elif name not in found[page].names:
            yield match, "%s has no section named %s" % (page, name)
    if path.startswith("doc/"):
        for match in INSIDE.finditer(text):
            if match.group(1) not in found[os.path.basename(path)].names:
                yield match, "this page has no section named " + match.group(1)
    pairs = [(match, match.group(1), match.group(2)) for match in SECTION_BEHIND.finditer(text)]
    pairs += [(match, match.group(2), match.group(1)) for match in SECTION_BEFORE.finditer(text)]
    for match, page, title in pairs:
        if page not in found:
            yield match, "there is no page " + page
        elif title not in found[page].titles:
            yield match, "%s has no section \"%s\"" % (page, title)


def missing_files(top, path, text):
    """Files of the project that the text names and that are not there. Of C only comments count: includes have a lint of their own."""
    if path.endswith((".c", ".h")):
        text = comments(path, text)
    for match in SOURCE.finditer(text):
        name, folder = match.groups()
        name = name if name.startswith("src/") else "src/" + name
        if os.path.isdir(os.path.join(top, "src", folder)) and name not in MADE and not os.path.exists(os.path.join(top, name)):
            yield match, "there is no such file"
    for match in OTHER.finditer(text):
        name = match.group(1)
        if not name.startswith(BUILT) and not any(os.path.exists(os.path.join(top, name + suffix)) for suffix in ("", ".pl", ".c")):
            yield match, "there is no such file"
    for match in TAP.finditer(text):
        if not os.path.exists(os.path.join(top, "test/tap", match.group(1) + ".pl")):
            yield match, "there is no such test"


def main():
    top = root()
    report = Report()
    found = pages(top)
    outside, lost, files = [], [], []
    for path, text in texts(top):
        marks = list(OUTSIDE.finditer(text))
        if not path.startswith("doc/"):
            marks += NUMBER.finditer(comments(path, text))
        outside += ["%s:%d: %s" % (path, line_of(text, match.start()), match.group(0)) for match in marks]
        lost += ["%s:%d: %s: %s" % (path, line_of(text, match.start()), match.group(0).replace("\n", " "), why)
                 for match, why in unresolved(found, path, text)]
        files += ["%s:%d: %s: %s" % (path, line_of(text, match.start()), match.group(0), why)
                  for match, why in missing_files(top, path, text)]
    report.check("no text refers to a document outside of the repository", outside)
    report.check("references to doc/ resolve", lost)
    report.check("files and tests that texts name exist", files)
    report.exit()


if __name__ == "__main__":
    main()
