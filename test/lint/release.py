#!/usr/bin/env python3
"""What only tests need is in no release: its files are apart (src/test_support, extension/test), the rest needs nothing of them, and without
TESTS_BUILD the compiler sees no injection point. The whole of it, on a real build: make check-release."""
import glob
import os
import re
import subprocess
import tempfile

from csource import Report, blank, line_of, read, root, sources

TESTS = "src/test_support/"
INFO = re.compile(r"\bPG_FUNCTION_INFO_V1\s*\(\s*(\w+)\s*\)")
TEST_NAME = re.compile(r"\btessera_test\.(\w*[a-z0-9])\b")
# What the macros of common/injection.h and init.c name in a build for tests.
SEAM = re.compile(r"tessera_injection_\w+$")


def symbols(path, option):
    output = subprocess.run(["nm", option, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in output.splitlines() if line.split()}


def link_findings(top, build):
    """Objects of a release that need what only tests have. Of a build without them nothing can be said."""
    tests = set()
    for path in sources(top, (".c",)):
        if path.startswith(TESTS) and os.path.isfile(os.path.join(build, path[:-2] + ".o")):
            tests |= symbols(os.path.join(build, path[:-2] + ".o"), "--defined-only")
    findings = []
    for path in sources(top, (".c",)):
        built = os.path.join(build, path[:-2] + ".o")
        if not path.startswith(TESTS) and os.path.isfile(built):
            findings += ["%s needs %s" % (path, name) for name in sorted(symbols(built, "-u") & tests) if not SEAM.match(name)]
    return findings


def sql_findings(top):
    """C functions of SQL on the wrong side."""
    findings = []
    infos = {name: path for path in sources(top, (".c",)) for name in INFO.findall(blank(read(top, path)))}
    for folder, tests in (("extension/install", False), ("extension/test", True)):
        for path in sorted(glob.glob(os.path.join(top, folder, "*.sql"))):
            for name in re.findall(r"'MODULE_PATHNAME',\s*'(\w+)'", read(top, os.path.relpath(path, top))):
                if infos.get(name, "").startswith(TESTS) != tests:
                    findings.append("%s: %s is in %s" % (os.path.relpath(path, top), name, infos.get(name)))
    return findings


def preprocessed_findings(top):
    """What the compiler sees of injection points in a release."""
    def run(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    pg_config = os.environ.get("PG_CONFIG", "pg_config")
    flags = ["-I" + run(pg_config, "--includedir-server"), "-I" + run(pg_config, "--includedir"), "-D_GNU_SOURCE"]
    flags += run("pkg-config", "--cflags", "libzmq", "libbson-1.0", "liblz4").split()
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "common"))
        with open(os.path.join(folder, "common/build.h"), "w", encoding="utf-8") as file:
            file.write("/* a release */\n")
        for path in sources(top, (".c",)):
            text = read(top, path)
            # A copy outside of the tree: the header of a build for tests may lie beside common/injection.h.
            if path.startswith(TESTS) or not re.search("injection|TESSERA_TESTS|under_test", text):
                continue
            command = ["cc", "-E", "-P", "-I" + folder, "-I" + os.path.join(top, "src"), "-I" + top, *flags, "-x", "c", os.path.join(top, path)]
            found = subprocess.run(command, capture_output=True, text=True)
            if found.returncode != 0:
                findings.append("%s: %s" % (path, found.stderr.strip().splitlines()[:1]))
            findings += ["%s: %s" % (path, line.strip()) for line in found.stdout.splitlines() if "injection" in line]
            if '#include "common/injection.h"' not in text:
                findings.append("%s: include common/injection.h" % path)
    return findings


def name_findings(top):
    """tessera_test.something that does not exist, or that messages of a release or pages for users name; and tests that look for it in
    schema tessera."""
    names = set()
    for path in glob.glob(os.path.join(top, "extension/test/*.sql")):
        names.update(TEST_NAME.findall(read(top, os.path.relpath(path, top))))
    findings = []
    for path in sources(top):
        text = blank(read(top, path), strings=False)
        findings += ["%s:%d: names tessera_test.%s" % (path, line_of(text, match.start()), match.group(1))
                     for match in TEST_NAME.finditer(text) if not path.startswith(TESTS) or match.group(1) not in names]
    for path in ["README.md"] + sorted(os.path.relpath(path, top) for path in glob.glob(os.path.join(top, "doc/*.md"))):
        text = read(top, path)
        findings += ["%s:%d: names tessera_test.%s" % (path, line_of(text, match.start()), match.group(1)) for match in TEST_NAME.finditer(text)
                     if path not in ("doc/development.md", "doc/chaos.md") or match.group(1) not in names]
    elsewhere = re.compile(r"\btessera\.(%s)\b" % "|".join(sorted(names)))
    for path in sorted(glob.glob(os.path.join(top, "sql/*.sql")) + glob.glob(os.path.join(top, "test/**/*"), recursive=True)):
        if not os.path.isfile(path) or path.endswith((".o", ".pyc", ".class")) or os.sep + "bin" + os.sep in path:
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            findings += ["%s: it is tessera_test.%s" % (os.path.relpath(path, top), name) for name in sorted(set(elsewhere.findall(file.read())))]
    return findings


def main():
    top = root()
    report = Report()
    report.check("a release needs nothing that only tests have", link_findings(top, os.environ.get("TESSERA_BUILD", top)))
    report.check("functions for tests are in extension/test and %s" % TESTS, sql_findings(top))
    report.check("without TESTS_BUILD there are no injection points", preprocessed_findings(top))
    report.check("functions for tests are named where they exist", name_findings(top))
    report.exit()


main()
