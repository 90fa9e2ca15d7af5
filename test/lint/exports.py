#!/usr/bin/env python3
"""Symbols: whatever a file of ours offers to the linker is named tessera_*, and the library shows each function that SQL calls."""
import os
import re
import subprocess

from csource import Report, blank, read, root, sources

ALLOWED = re.compile(r"^(_PG_init|_PG_fini|_PG_output_plugin_init|Pg_magic_func|tessera_\w+|pg_finfo_tessera_\w+)$")
INFO = re.compile(r"\bPG_FUNCTION_INFO_V1\s*\(\s*(\w+)\s*\)")


def symbols(*arguments):
    """Defined global symbols, by nm."""
    output = subprocess.run(["nm", "--defined-only", *arguments], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in output.splitlines() if len(line.split()) == 3]


def main():
    top = root()
    build = os.environ.get("TESSERA_BUILD", top)
    library = os.environ.get("TESSERA_LIBRARY", os.path.join(top, "tessera.so"))
    report = Report()
    exported = set(symbols("-D", library))
    # A release has nothing of src/test_support.
    compiled = [path for path in sources(top, (".c",)) if "tessera_injection_set" in exported or not path.startswith("src/test_support/")]

    # The version script hides other names from the server; inside the library they are still not ours to take.
    findings = []
    for path in compiled:
        built = os.path.join(build, path[:-2] + ".o")
        if not os.path.isfile(built):
            findings.append("%s: not built" % path)
            continue
        findings += ["%s: %s: static, or tessera_*" % (path, name) for name in symbols("-g", built) if not ALLOWED.match(name)]
    report.check("symbols of object files have the prefix", findings)

    wanted = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout.split()
    report.check("the library defines what it calls of its own", [name for name in wanted if name.startswith("tessera_")])

    report.check("symbols of the library have the prefix", [name for name in sorted(exported) if not ALLOWED.match(name)])

    findings = []
    for path in compiled:
        for name in INFO.findall(blank(read(top, path))):
            findings += ["%s: %s is not exported" % (path, wanted) for wanted in (name, "pg_finfo_" + name) if wanted not in exported]
    report.check("functions that SQL calls are exported", findings)
    report.exit()


main()
