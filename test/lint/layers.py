#!/usr/bin/env python3
"""Includes point downwards: a file sees its own folder and lower layers, never a folder of its own layer or above."""
import os
import re
import subprocess

from csource import Report, blank, line_of, read, root, sources

LAYERS = {
    "common": 0,
    "clock": 1, "codec": 1,
    "transport": 2, "catalog": 2,
    "control": 3, "rows": 3,
    "routing": 4, "session": 4,
    "transaction": 5, "load": 5,
    "executor": 6, "ddl": 6, "balance": 6, "transfer": 6, "logical_session": 6, "failover": 6, "statistics": 6,
    "planner": 7, "migration": 7, "config": 7,
    "admin": 8, "balancer": 8, "test_support": 8,
    "bgworkers": 9,
    "init": 10,
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def folder_of(path):
    parts = path.split("/")
    if parts[0] == "bgworkers":
        return "bgworkers"
    if len(parts) == 2:
        return os.path.splitext(parts[1])[0]
    return parts[1]


def own_file(top, name):
    """The project's file that an include means, or None for a header of somebody else."""
    for path in ("src/" + name, name):
        if (path.startswith("src/") or path.startswith("bgworkers/")) and os.path.isfile(os.path.join(top, path)):
            return path
    return None


def include_findings(top, path):
    here = folder_of(path)
    if here not in LAYERS:
        return ["%s: folder %s is in no layer: add it to LAYERS and to doc/architecture.md" % (path, here)]
    text = read(top, path)
    findings = []
    for match in INCLUDE.finditer(blank(text, strings=False)):
        name = match.group(2)
        where = "%s:%d" % (path, line_of(text, match.start()))
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        target = own_file(top, name)
        if target is None:
            if ".." in name or os.path.isfile(os.path.join(top, beside)):
                findings.append('%s: write "folder/file.h", not "%s"' % (where, name))
            continue
        if match.group(1) == "<":
            findings.append('%s: write "%s", not <%s>' % (where, name, name))
        there = folder_of(target)
        if there != here and LAYERS.get(there, 99) >= LAYERS[here]:
            findings.append("%s: %s (layer %d) must not see %s (layer %s)" % (where, here, LAYERS[here], name, LAYERS.get(there, "?")))
    return findings


def shadow_findings(top):
    """Headers of ours that carry the path of a header of PostgreSQL: which of the two an include means would hang on the order of -I."""
    try:
        server = subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), "--includedir-server"],
                                capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return []
    return ["%s: PostgreSQL has a header of this name" % path for path in sources(top, (".h",))
            if path.startswith("src/") and os.path.isfile(os.path.join(server, path[len("src/"):]))]


def main():
    top = root()
    report = Report()
    findings = []
    for path in sources(top):
        findings += include_findings(top, path)
    report.check("includes point to lower layers", findings)
    report.check("no header shadows one of PostgreSQL", shadow_findings(top))
    report.exit()


main()
